"""Unexpected errors in the log: never with their message, which may quote a document."""

import traceback


def error_site(error: Exception) -> dict[str, str]:
    """Type of an error and the deepest line of this service on its way."""
    site = {"error": type(error).__name__}
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("service."):
            site["where"] = f"{module}:{line}"
    return site

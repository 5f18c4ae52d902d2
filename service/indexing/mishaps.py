"""Unexpected errors in the log: never with their message, which may quote a document."""


def error_site(error: Exception) -> dict[str, str]:
    """Type and place of an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "unknown"
    return {"error": type(error).__name__, "where": where}

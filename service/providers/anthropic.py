"""Anthropic: how its API is called."""

from urllib.parse import quote

import msgspec

from service.providers.registry import Probe

API_VERSION = "2023-06-01"


class Kind(msgspec.Struct, frozen=True):
    """What all calls share."""

    base_url: str = "https://api.anthropic.com"

    def headers(self, secret: str) -> dict[str, str]:
        """The key and the version of the API."""
        return {"x-api-key": secret, "anthropic-version": API_VERSION}

    def probe(self, model: str | None) -> Probe:
        """The list of models, or one of them, costs nothing."""
        return Probe(
            "GET", f"/v1/models/{quote(model, safe='')}" if model else "/v1/models?limit=1"
        )


KIND = Kind()

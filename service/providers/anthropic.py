"""Anthropic: headers for chunks."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from service.errors import ProviderError
from service.providers.base import ContextUsage, Header, Passage
from service.providers.context_prompt import (
    INSTRUCTIONS,
    MAX_OUTPUT_TOKENS,
    document_block,
    passage_block,
)
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


class _Block(msgspec.Struct):
    type: str
    text: str = ""


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0


class Message(msgspec.Struct):
    """What a model answered, as far as it matters here."""

    content: list[_Block]
    usage: _Usage

    def header(self) -> Header:
        """The text of the answer, which a refusal has none of, and its tokens."""
        usage = self.usage
        return Header(
            "".join(block.text for block in self.content if block.type == "text"),
            ContextUsage(
                input=usage.input_tokens,
                cache_write=usage.cache_creation_input_tokens or 0,
                cache_read=usage.cache_read_input_tokens or 0,
                output=usage.output_tokens,
            ),
        )


_decoder = msgspec.json.Decoder(Message)


class _Batch(msgspec.Struct):
    id: str
    processing_status: str


class _Result(msgspec.Struct):
    type: str
    message: Message | None = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


def _read(answer: bytes) -> Message:
    try:
        return _decoder.decode(answer)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # The standard library also reads lone surrogates, which are cleaned away later.
        return msgspec.convert(json.loads(answer), Message)


class Contextualizing(msgspec.Struct, frozen=True):
    """`POST /v1/messages`: the document is a system block of its own, so that it can be cached."""

    path: str = "/v1/messages"
    batch_path: str | None = "/v1/messages/batches"

    def body(
        self, model: str, passage: Passage, *, cached: bool, lasting: bool = False
    ) -> dict[str, Any]:
        """The request."""
        document: dict[str, Any] = {
            "type": "text",
            "text": document_block(passage.document, passage.title),
        }
        if cached:
            document["cache_control"] = {"type": "ephemeral", **({"ttl": "1h"} if lasting else {})}
        return {
            "model": model,
            "max_tokens": MAX_OUTPUT_TOKENS,
            "thinking": {"type": "disabled"},
            "system": [{"type": "text", "text": INSTRUCTIONS}, document],
            "messages": [{"role": "user", "content": passage_block(passage.text)}],
        }

    def header(self, answer: bytes) -> Header:
        """The header of a message; raises `ProviderError`."""
        try:
            return _read(answer).header()
        except (ValueError, msgspec.MsgspecError) as error:
            raise ProviderError("the provider's answer cannot be read", transient=True) from error

    def batch_body(self, requests: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """A message batch."""
        return {"requests": [{"custom_id": name, "params": requests[name]} for name in requests]}

    def batch_state(self, answer: bytes) -> tuple[str, bool]:
        """Id and whether it has ended; raises `ProviderError`."""
        try:
            batch = msgspec.json.decode(answer, type=_Batch)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProviderError("the provider's answer cannot be read", transient=True) from error
        return batch.id, batch.processing_status == "ended"

    def batch_headers(self, answer: bytes) -> dict[str, Header]:
        """Lines in any order; raises `ProviderError`."""
        headers = {}
        for line in answer.splitlines():
            if not line.strip():
                continue
            try:
                found = msgspec.convert(json.loads(line), _Line)
            except (msgspec.MsgspecError, ValueError) as error:
                raise ProviderError("a line of the batch cannot be read", transient=True) from error
            if found.result.type == "succeeded" and found.result.message is not None:
                headers[found.custom_id] = found.result.message.header()
        return headers


CONTEXTUALIZING = Contextualizing()

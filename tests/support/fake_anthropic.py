"""A server that speaks the Anthropic Messages API, with its prompt cache and its batches."""

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.fake_embeddings import KEY
from support.fake_http import Answer, Call, FakeServer

WORD = re.compile(r"\w+|[^\w\s]")
SAMPLING = ("temperature", "top_p", "top_k")
TTL_SECONDS = {"5m": 300.0, "1h": 3600.0}
BATCH = re.compile(r"/v1/messages/batches/(msgbatch_\d+)(/results|/cancel)?$")


@dataclass
class CacheEntry:
    """A prefix of a prompt: readable from one moment to another."""

    visible_at: float
    ends_at: float


class FakeAnthropic(FakeServer):
    """`POST /v1/messages`, `/v1/messages/count_tokens` and `/v1/messages/batches`.

    The cache holds prefixes that end in a block with `cache_control`, if they have at least
    `least_cached` tokens; a new entry is readable `visible_after` seconds later. `clock` is the
    time; `context` makes the answer from the last user message. Batches end when `end_batches`
    is called; custom ids in `erring` and `expiring` end so.
    """

    def __init__(
        self,
        *,
        least_cached: int = 512,
        visible_after: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.least_cached = least_cached
        self.visible_after = visible_after
        self.clock = clock
        self.window = 200_000
        self.thinks = False
        self.refuses = False
        self.erring: set[str] = set()
        self.expiring: set[str] = set()
        self.batches: dict[str, dict[str, Any]] = {}
        self.usages: list[dict[str, int]] = []
        self.context: Callable[[str], str] = lambda text: f"About {len(text)} characters."
        self._cache: dict[str, CacheEntry] = {}

    @property
    def cache_writes(self) -> int:
        """Calls that wrote to the cache."""
        return sum(usage["cache_creation_input_tokens"] > 0 for usage in self.usages)

    @property
    def cache_reads(self) -> int:
        """Calls that read from the cache."""
        return sum(usage["cache_read_input_tokens"] > 0 for usage in self.usages)

    def respond(self, call: Call) -> Answer:
        given = (call.headers.get("x-api-key"), call.headers.get("authorization"))
        if given[0] != KEY and given[1] != f"Bearer {KEY}":
            return error(401, "authentication_error", "invalid x-api-key")
        if call.path.startswith("/v1/models"):
            return Answer({"data": [], "has_more": False, "first_id": None, "last_id": None})
        if "anthropic-version" not in call.headers:
            return error(400, "invalid_request_error", "anthropic-version: header is required")
        return self._route(call)

    def _route(self, call: Call) -> Answer:
        if call.path == "/v1/messages":
            return self._message(call.body)
        if call.path == "/v1/messages/count_tokens":
            return Answer({"input_tokens": sum(tokens for _, tokens, _ in blocks(call.body))})
        if call.path == "/v1/messages/batches" and call.method == "POST":
            return self._new_batch(call.body)
        if match := BATCH.match(call.path):
            return self._batch(match[1], match[2])
        return error(404, "not_found_error", "Not found")

    def end_batches(self) -> None:
        """Let every batch end."""
        for batch in self.batches.values():
            batch["ended"] = True

    def _message(self, body: dict[str, Any]) -> Answer:
        if reason := unfit(body):
            return error(400, "invalid_request_error", reason)
        if sum(tokens for _, tokens, _ in blocks(body)) > self.window:
            return error(400, "invalid_request_error", "prompt is too long")
        return Answer(self._completion(body), headers={"request-id": f"req_{len(self.calls)}"})

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        usage = self._usage(body)
        self.usages.append(usage)
        silent = body["max_tokens"] == 0
        content: list[dict[str, Any]] = []
        if self.thinks and not silent:
            content.append({"type": "thinking", "thinking": "hm", "signature": "s"})
        if not silent and not self.refuses:
            content.append({"type": "text", "text": self.context(last_user_text(body))})
        reason = "max_tokens" if silent else "refusal" if self.refuses else "end_turn"
        return {
            "id": f"msg_{len(self.usages)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, body: dict[str, Any]) -> dict[str, int]:
        """Read the longest visible prefix, write the longest one that asks to be cached."""
        now, digest, total = self.clock(), hashlib.sha256(body["model"].encode()), 0
        read = written = 0
        for text, tokens, ttl in blocks(body):
            digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
            total += tokens
            if ttl is None or total < self.least_cached:
                continue
            entry = self._cache.get(digest.hexdigest())
            if entry is not None and entry.visible_at <= now < entry.ends_at:
                entry.ends_at = now + ttl
                read = total
            else:
                ends = max(entry.ends_at if entry else 0.0, now + ttl)
                visible = now + self.visible_after
                if entry is not None and now < entry.ends_at:
                    visible = entry.visible_at
                self._cache[digest.hexdigest()] = CacheEntry(visible, ends)
                written = total
        written = max(0, written - read)
        return {
            "input_tokens": total - read - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "output_tokens": 0 if body["max_tokens"] == 0 else 3,
        }

    def _new_batch(self, body: dict[str, Any]) -> Answer:
        ids = [request["custom_id"] for request in body["requests"]]
        if len(ids) != len(set(ids)):
            return error(400, "invalid_request_error", "custom_id must be unique")
        name = f"msgbatch_{len(self.batches) + 1}"
        self.batches[name] = {"requests": body["requests"], "ended": False}
        return Answer(self._describe(name))

    def _batch(self, name: str, part: str | None) -> Answer:
        if name not in self.batches:
            return error(404, "not_found_error", "Not found")
        if part == "/results" and self.batches[name]["ended"]:
            lines = [json.dumps(self._result(one)) for one in reversed(self._requests(name))]
            return Answer("\n".join([*lines, ""]).encode(), content_type="application/x-jsonl")
        if part == "/results":
            return error(400, "invalid_request_error", "the batch has not ended")
        if part == "/cancel":
            self.batches[name]["ended"] = True
        return Answer(self._describe(name))

    def _requests(self, name: str) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = self.batches[name]["requests"]
        return requests

    def _describe(self, name: str) -> dict[str, Any]:
        requests, ended = self._requests(name), self.batches[name]["ended"]
        ids = {one["custom_id"] for one in requests}
        erring, expiring = len(ids & self.erring), len(ids & self.expiring)
        done = len(ids) - erring - expiring
        return {
            "id": name,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": {
                "processing": 0 if ended else len(ids),
                "succeeded": done if ended else 0,
                "errored": erring if ended else 0,
                "canceled": 0,
                "expired": expiring if ended else 0,
            },
            "ended_at": "2026-01-01T00:01:00Z" if ended else None,
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"{self.url}/v1/messages/batches/{name}/results" if ended else None,
        }

    def _result(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["custom_id"]
        if name in self.expiring:
            result: dict[str, Any] = {"type": "expired"}
        elif name in self.erring:
            inner = {"type": "invalid_request_error", "message": "scripted"}
            result = {"type": "errored", "error": {"type": "error", "error": inner}}
        else:
            result = {"type": "succeeded", "message": self._completion(request["params"])}
        return {"custom_id": name, "result": result}


def error(status: int, kind: str, message: str) -> Answer:
    """An error as the API sends it."""
    return Answer({"type": "error", "error": {"type": kind, "message": message}}, status)


def unfit(body: dict[str, Any]) -> str | None:
    """Why the API would refuse the request."""
    for field in ("model", "max_tokens", "messages"):
        if field not in body:
            return f"{field}: Field required"
    for field in SAMPLING:
        if field in body:
            return f"{field}: not supported by this model"
    if body["messages"][-1]["role"] != "user":
        return "this model does not support assistant message prefill"
    return None


def blocks(body: dict[str, Any]) -> list[tuple[str, int, float | None]]:
    """Text, tokens and time to live in the cache of each block, in the order of the prompt."""
    system = body.get("system", [])
    parts = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
    for message in body["messages"]:
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [(part["text"], len(WORD.findall(part["text"])), _ttl(part)) for part in parts]


def last_user_text(body: dict[str, Any]) -> str:
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _ttl(part: dict[str, Any]) -> float | None:
    control = part.get("cache_control")
    return TTL_SECONDS[control.get("ttl", "5m")] if control else None

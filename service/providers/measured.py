"""What calls to providers leave behind: a span, their time and outcome, their tokens and cost."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping

from opentelemetry import trace

from service.errors import (
    CallTooLargeError,
    ConfigurationError,
    ProviderError,
    ProviderRefusalError,
)
from service.instruments import PROVIDER_COST, PROVIDER_DURATION, PROVIDER_TOKENS
from service.telemetry import stage

PRICES = "BRAID_TOKEN_PRICES"
MILLION = 1_000_000


@contextlib.contextmanager
def calling(provider: str, purpose: str) -> Iterator[Mapping[str, str]]:
    """Measure a call; the headers that carry the trace on to the provider."""
    began, outcome = time.perf_counter(), "error"
    with stage("provider", kind=trace.SpanKind.CLIENT) as current:
        current.facts.update(provider=provider, purpose=purpose)
        try:
            yield _trace_headers()
            outcome = "ok"
        except ProviderError as error:
            outcome = _outcome(error)
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            current.facts["result"] = outcome
            PROVIDER_DURATION.record(time.perf_counter() - began, provider, purpose, outcome)


def _outcome(error: ProviderError) -> str:
    if isinstance(error, ProviderRefusalError):
        return "refused"
    if isinstance(error, CallTooLargeError):
        return "too_large"
    return "unavailable" if error.transient else "error"


def _trace_headers() -> dict[str, str]:
    # Without the caller's tracestate: it is no business of a third party.
    current = trace.get_current_span().get_span_context()
    if not current.is_valid:
        return {}
    flags = int(current.trace_flags)
    return {"traceparent": f"00-{current.trace_id:032x}-{current.span_id:016x}-{flags:02x}"}


class Prices:
    """What the operator pays: USD for a million tokens, by kind of provider and of token."""

    def __init__(self, given: str = "") -> None:
        self._prices = dict(_price(entry) for entry in given.split(",") if entry.strip())

    def count(self, provider: str, kind: str, tokens: int) -> None:
        """Count tokens, and what they cost where the price is known."""
        if tokens <= 0:
            return
        PROVIDER_TOKENS.add(tokens, provider, kind)
        price = self._prices.get((provider, kind))
        if price is not None:
            PROVIDER_COST.add(tokens * price / MILLION, provider)


def _price(entry: str) -> tuple[tuple[str, str], float]:
    name, _, amount = entry.partition("=")
    provider, _, kind = name.strip().partition(":")
    try:
        price = float(amount)
    except ValueError:
        price = -1.0
    if not provider or not kind or not 0 <= price < float("inf"):
        raise ConfigurationError(f"{PRICES}: not a price, such as voyage:embedding=0.06")
    return (provider, kind), price

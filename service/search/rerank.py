"""Reranking: a model reads the best candidates together with the query and orders them anew."""

from collections.abc import Mapping, Sequence

import msgspec

from service.models import Collection, RerankDefaults
from service.providers.base import Relevance
from service.search.fusion import Fused, Reranked

CONTEXT_CHARACTERS = 2000
"""Of the last conversation turns: what was said last says most about the question."""


class RerankPlan(msgspec.Struct, frozen=True):
    """Which model reads how many candidates, and how long it may take."""

    provider: str
    model: str | None
    top_n: int
    seconds: float


def plan_rerank(
    defaults: RerankDefaults, *, enabled: bool | None, top_n: int | None, timeout_ms: int | None
) -> RerankPlan | None:
    """What a request asks on top of its collection's settings; None when it is off."""
    wanted = defaults.enabled if enabled is None else enabled
    if not wanted or defaults.provider is None:
        return None
    return RerankPlan(
        provider=defaults.provider,
        model=defaults.model,
        top_n=top_n or defaults.top_n,
        seconds=(timeout_ms or defaults.timeout_ms) / 1000,
    )


def common_defaults(collections: Sequence[Collection]) -> RerankDefaults:
    """What several collections set alike; otherwise there is no reranking over them."""
    first = collections[0].rerank
    alike = all(one.rerank == first for one in collections)
    return first if alike else RerankDefaults()


def question(text: str, context: str | None) -> str:
    """What the model is asked: the end of the conversation, then the query."""
    turns = (context or "")[-CONTEXT_CHARACTERS:].strip()
    return f"{turns}\n\n{text}" if turns else text


def reorder(
    fused: Sequence[Fused], rows: Sequence[int], ranked: Sequence[Relevance]
) -> list[Fused]:
    """The candidates that were scored, best first, then all others in their order.

    `rows` are the candidates that the model read, `ranked` names them by their place there.
    """
    places: dict[int, Reranked] = {
        rows[one.index]: Reranked(rank, one.score) for rank, one in enumerate(ranked, 1)
    }
    scored = [
        msgspec.structs.replace(one, rerank=places[one.candidate.row])
        for one in fused
        if one.candidate.row in places
    ]
    scored.sort(key=lambda one: one.rerank.rank if one.rerank else 0)
    return [*scored, *(one for one in fused if one.candidate.row not in places)]


def passing(fused: Sequence[Fused], least: float | None) -> list[Fused]:
    """Those whose score reaches the least; all without one."""
    if least is None:
        return list(fused)
    return [one for one in fused if one.rerank is not None and one.rerank.score >= least]


def relevance_of(fused: Sequence[Fused]) -> list[float]:
    """One falling scale over a list: the reranker's where it ranked, its least below."""
    scores = [one.rerank.score for one in fused if one.rerank is not None]
    if not scores:
        return [one.score for one in fused]
    return [one.rerank.score if one.rerank else min(scores) for one in fused]


def texts_of(rows: Sequence[int], texts: Mapping[int, str]) -> tuple[list[int], list[str]]:
    """The candidates that still exist and have a text, and what the model is to read of them."""
    kept = [row for row in rows if texts.get(row)]
    return kept, [texts[row] for row in kept]

"""One ranked list a leg out of those of several collections; pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from service.models import Candidate
from service.search.fusion import Fused, Leg, scale_by_distribution
from service.search.request import SearchPlan

Space: TypeAlias = tuple[str | int | None, ...]
"""What vectors have in common whose cosines compare: their model, or that the client says so."""


class Part(msgspec.Struct, frozen=True):
    """What the legs found in one collection, and what their scores mean there."""

    found: Mapping[Leg, Sequence[Candidate]]
    space: Space
    pooled: Sequence[Candidate] | None = None
    """The lexical candidates with scores that compare between the collections."""


def space_of(plan: SearchPlan) -> Space:
    """The space of a collection's vectors; a query with a vector of its own is in all of them."""
    generation = plan.collection.generation
    if plan.vector is not None:
        return ("given", generation.dim)
    return (generation.provider, generation.model, generation.dim, generation.base_url)


def merge_parts(parts: Sequence[Part], limit: int) -> dict[Leg, list[Candidate]]:
    """The best `limit` candidates of each leg over all collections.

    Scores of different collections compare only on a common scale. Dense: cosine, as long as all
    vectors come from one model; else each model's scores by their own mean +- 3 standard
    deviations. Lexical: pooled BM25. One collection alone keeps its scores.
    """
    if len(parts) == 1:
        return {leg: list(found) for leg, found in parts[0].found.items()}
    merged: dict[Leg, list[Candidate]] = {}
    if any("dense" in part.found for part in parts):
        merged["dense"] = _best(_comparable_cosines(parts), limit)
    if any("lexical" in part.found for part in parts):
        merged["lexical"] = _best([one for part in parts for one in _words(part)], limit)
    return merged


def _comparable_cosines(parts: Sequence[Part]) -> list[Candidate]:
    by_space: dict[Space, list[Candidate]] = {}
    for part in parts:
        by_space.setdefault(part.space, []).extend(part.found.get("dense", ()))
    groups = [group for group in by_space.values() if group]
    if len(groups) <= 1:
        return groups[0] if groups else []
    return [
        msgspec.structs.replace(one, score=score)
        for group in groups
        for one, score in zip(
            group, scale_by_distribution([one.score for one in group]), strict=True
        )
    ]


def _words(part: Part) -> Sequence[Candidate]:
    return part.found.get("lexical", ()) if part.pooled is None else part.pooled


def _best(candidates: Sequence[Candidate], limit: int) -> list[Candidate]:
    return sorted(candidates, key=lambda one: (-one.score, one.chunk_id, one.row))[:limit]


def is_whole(parts: Sequence[Part], limit: int) -> bool:
    """Whether merging to `limit` leaves no candidate out."""
    found: Counter[Leg] = Counter()
    for part in parts:
        for leg, candidates in part.found.items():
            found[leg] += len(candidates)
    return len(parts) == 1 or all(count <= limit for count in found.values())


def own_scores(fused: list[Fused], parts: Sequence[Part]) -> list[Fused]:
    """The fused list with each leg's score as the candidate's own collection gave it."""
    if len(parts) == 1:
        return fused
    own = {
        (leg, one.row): one.score
        for part in parts
        for leg, found in part.found.items()
        for one in found
    }
    return [
        msgspec.structs.replace(
            one,
            legs={
                leg: msgspec.structs.replace(given, score=own[leg, one.candidate.row])
                for leg, given in one.legs.items()
            },
        )
        for one in fused
    ]

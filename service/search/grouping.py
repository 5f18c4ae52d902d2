"""Which fused candidates make the answer: k chunks, or the chunks of k documents; pure."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from service.search.fusion import Fused


class Selection(msgspec.Struct, frozen=True):
    """The chosen candidates in fused order, and whether there were enough of them."""

    hits: list[Fused]
    filled: bool


def select_chunks(fused: Sequence[Fused], k: int, per_document: int | None) -> Selection:
    """The k best chunks, at most `per_document` of one document."""
    hits = capped(fused, per_document)[:k]
    return Selection(hits, len(hits) >= k)


def select_documents(fused: Sequence[Fused], k: int, per_document: int | None) -> Selection:
    """The chunks of the k documents whose best chunk ranks first."""
    order = dict.fromkeys(one.candidate.document for one in fused)
    chosen = set(list(order)[:k])
    hits = [one for one in capped(fused, per_document) if one.candidate.document in chosen]
    return Selection(hits, len(chosen) >= k)


def of_documents(fused: Sequence[Fused], leaders: Sequence[Fused]) -> list[Fused]:
    """The candidates of the leaders' documents, in the order of the documents."""
    groups: dict[int, list[Fused]] = {one.candidate.document: [] for one in leaders}
    for one in fused:
        groups.get(one.candidate.document, []).append(one)
    return [one for group in groups.values() for one in group]


def capped(fused: Sequence[Fused], per_document: int | None) -> list[Fused]:
    """The best `per_document` candidates of each document, in the given order."""
    if per_document is None:
        return list(fused)
    seen: Counter[int] = Counter()
    kept = []
    for one in fused:
        seen[one.candidate.document] += 1
        if seen[one.candidate.document] <= per_document:
            kept.append(one)
    return kept


def by_document(hits: Sequence[Fused]) -> dict[int, list[Fused]]:
    """Documents in fused order of their best chunk, each with its chunks in reading order."""
    groups: dict[int, list[Fused]] = {}
    for one in hits:
        groups.setdefault(one.candidate.document, []).append(one)
    for group in groups.values():
        group.sort(key=lambda one: (one.candidate.position, one.candidate.chunk_id))
    return groups

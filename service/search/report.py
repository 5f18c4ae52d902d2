"""What an answer tells of how it came to be; pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from service.search.fusion import FusionRule
from service.search.progress import Progress
from service.search.response import (
    CollectionPart,
    Degradation,
    Explanation,
    FusionExplanation,
    StageName,
)

Name = str | msgspec.UnsetType


def combined_stages(parts: Sequence[Progress]) -> dict[StageName, dict[str, Any]]:
    """The stages of one collection as they are; of several the slowest time and all candidates."""
    if len(parts) == 1:
        return parts[0].stages
    combined: dict[StageName, dict[str, Any]] = {}
    for part in parts:
        for name, facts in part.stages.items():
            known = combined.setdefault(name, {"status": "ok", "ms": 0.0})
            known["ms"] = max(known["ms"], facts["ms"])
            if facts["status"] != "ok":
                known["status"] = facts["status"]
            if "candidates" in facts:
                known["candidates"] = known.get("candidates", 0) + facts["candidates"]
    return combined


def named(part: Progress, name: Name) -> list[Degradation]:
    """What was left out, with the collection where there are several."""
    return [msgspec.structs.replace(one, collection=name) for one in part.degraded]


def report_part(part: Progress, exhausted: bool) -> CollectionPart:
    """What the search did in one of several collections."""
    return CollectionPart(exhausted, part.stages, part.degraded)


def explain_rule(rule: FusionRule | None) -> Explanation:
    """The rule that was used."""
    if rule is None:
        return Explanation(fusion=None)
    rrf_k = rule.rrf_k if rule.method == "rrf" else None
    return Explanation(
        FusionExplanation(rule.method, rule.weights, rrf_k, rule.reason, rule.evidence, rule.lowest)
    )

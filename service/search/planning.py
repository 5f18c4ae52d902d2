"""Which rows a lexical query looks at within a budget, and what the others could reach."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from service.db.lexical import QueryLexeme
from service.models import Generation
from service.text import lexeme_hash, quote_lexeme

COMBINED = 6
"""Common lexemes whose combinations are looked at: 63 of them."""
INDEPENDENCE = 0.8
"""Lexemes stand together more often than chance: a share counts with this power."""
READ_COST = 0.2
"""Of a candidate's cost: an index entry that is read to find a combination."""


class LexicalPlan(msgspec.Struct, frozen=True):
    """Which rows are candidates, how lexemes weigh, and what the others could reach at most."""

    tsquery: str
    weights: Mapping[str, float]
    """idf x query tf by lexeme; every lexeme scores, whether or not it finds candidates."""
    unseen_bound: float = 0.0
    """No row outside the candidates can score more; 0 when every matching row is one."""


class _Lexeme(NamedTuple):
    lexeme: str
    weight: float
    rows: int


class _Combination(NamedTuple):
    """Lexemes that stand together, by falling weight."""

    lexemes: tuple[str, ...]
    weight: float
    without_last: float
    rows: float
    """About how many rows hold all of them."""
    read: int
    """Index entries to read: the rows of the rarest one."""


class _Choice(NamedTuple):
    """Single lexemes and combinations whose rows are candidates, and the weight of the others."""

    singles: Sequence[_Lexeme]
    combinations: Sequence[_Combination]
    unseen: float


def idf(rows: int, frequency: int) -> float:
    """Inverse document frequency of BM25 (Robertson & Zaragoza 2009), never negative."""
    frequency = min(frequency, rows)
    return math.log1p((rows - frequency + 0.5) / (frequency + 0.5))


def weigh(lexemes: Iterable[QueryLexeme], rows: int) -> dict[str, float]:
    """idf x query tf by lexeme."""
    return {one.lexeme: one.tf * idf(rows, one.frequency) for one in lexemes}


def plan_lexical(lexemes: Sequence[QueryLexeme], rows: int, generation: Generation) -> LexicalPlan:
    """Candidates under the row budget: rows with a rare lexeme, or with enough common ones.

    A row's score is at most k1 + 1 times the weights of the lexemes that it holds. So the budget
    goes to the rarest lexemes and to the combinations of the others that weigh most, in the split
    that leaves out the least.
    """
    weights = weigh(lexemes, rows)
    known = sorted(
        (_Lexeme(one.lexeme, weights[one.lexeme], one.frequency) for one in lexemes),
        key=lambda one: (one.rows, one.lexeme),
    )
    budget = generation.row_budget
    fitting = _fitting(known, budget)
    if fitting == len(known):
        return LexicalPlan(any_of(weights), weights)
    best = _choose(known, fitting, rows, budget)
    for singles in range(fitting - 1, -1, -1):
        other = _choose(known, singles, rows, budget)
        if other.unseen >= best.unseen:
            break
        best = other
    chosen: list[Sequence[str]] = [(one.lexeme,) for one in best.singles]
    chosen += [one.lexemes for one in best.combinations]
    return LexicalPlan(_one_of(chosen), weights, (generation.k1 + 1) * best.unseen)


def _fitting(known: Sequence[_Lexeme], budget: int) -> int:
    total = 0
    for place, one in enumerate(known):
        total += one.rows
        if total > budget:
            return place
    return len(known)


def _choose(known: Sequence[_Lexeme], singles: int, rows: int, budget: int) -> _Choice:
    """The rarest lexemes, and as many combinations of the others as fit beside them."""
    others = sorted(known[singles:], key=lambda one: (-one.weight, one.lexeme))
    combined, ignored = others[:COMBINED], others[COMBINED:]
    combinations = _combinations(combined, rows)
    room = budget - sum(one.rows for one in known[:singles])
    reached = sorted({one.weight for one in combinations}, reverse=True)
    chosen: list[_Combination] = []
    first, last = 0, len(reached)
    while first < last:
        middle = (first + last) // 2
        tried = _minimal(combinations, reached[middle])
        if _cost(tried) <= room:
            chosen, first = tried, middle + 1
        else:
            last = middle
    unseen = sum(one.weight for one in ignored) + (reached[first] if first < len(reached) else 0.0)
    if not singles and not chosen:
        # Nothing fits: any choice costs more than the budget, and this one finds the most.
        return _Choice(others[:1], [], sum(one.weight for one in others[1:]))
    return _Choice(known[:singles], chosen, unseen)


def _combinations(lexemes: Sequence[_Lexeme], rows: int) -> list[_Combination]:
    """All combinations of lexemes, given by falling weight."""
    found: list[_Combination] = []
    for one in lexemes:
        alone = _Combination((one.lexeme,), one.weight, 0.0, one.rows, 0)
        found += [
            _Combination(
                (*other.lexemes, one.lexeme),
                other.weight + one.weight,
                other.weight,
                _together(other.rows, one.rows, rows),
                min(other.read or int(other.rows), one.rows),
            )
            for other in found
        ]
        found.append(alone)
    return found


def _together(some: float, others: float, rows: int) -> float:
    few, many = sorted((some, others))
    share: float = min(1.0, many / max(rows, 1)) ** INDEPENDENCE
    return few * share


def _minimal(combinations: Iterable[_Combination], least: float) -> list[_Combination]:
    """Combinations that weigh enough and would not without their lightest lexeme."""
    return [one for one in combinations if one.without_last < least <= one.weight]


def _cost(combinations: Sequence[_Combination]) -> float:
    read = {one.lexemes[0]: one.read for one in combinations}
    return sum(one.rows for one in combinations) + READ_COST * sum(read.values())


def _one_of(combinations: Iterable[Sequence[str]]) -> str:
    """A tsquery that one of the combinations must match; a common beginning is asked once."""
    by_first: dict[str, list[Sequence[str]]] = {}
    for first, *rest in combinations:
        by_first.setdefault(first, []).append(rest)
    return " | ".join(
        quote_lexeme(first) + (f" & ({_one_of(rests)})" if all(rests) else "")
        for first, rests in by_first.items()
    )


def any_of(lexemes: Iterable[str]) -> str:
    """A tsquery that one of the lexemes must match."""
    return " | ".join(map(quote_lexeme, lexemes))


def all_of(lexemes: Iterable[str]) -> str:
    """A tsquery that every one of the lexemes must match."""
    return " & ".join(map(quote_lexeme, lexemes))


def positions_of(weights: Mapping[str, float]) -> dict[int, float]:
    """Weights by the lexemes' positions (from 1) in the document vectors."""
    positions: dict[int, float] = {}
    for lexeme, weight in weights.items():
        place = lexeme_hash(lexeme)
        positions[place] = positions.get(place, 0.0) + weight
    return positions

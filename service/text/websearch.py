"""The query language of `websearch`: quotes, a leading minus, and `or`."""

import re
import string

import msgspec


class Clause(msgspec.Struct, frozen=True):
    """One condition of a query.

    All clauses up to the next `alternative` must hold together, and one such group is enough:
    `a b or c` is (a and b) or c, as PostgreSQL's websearch_to_tsquery reads it.
    """

    text: str
    phrase: bool = False
    """Its words stand next to each other, in this order."""
    negated: bool = False
    alternative: bool = False
    """It starts a group of its own: `or` stands before it."""


_CLAUSE = re.compile(r'(-?)"([^"]*)(?:"|$)|([^\s"]+)')
_PUNCTUATION = string.punctuation + string.whitespace
_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02", '"'))


def parse_websearch(text: str) -> tuple[Clause, ...]:
    """Read a query; every text is one.

    A quote that nobody closes lasts to the end, a minus before a blank is punctuation, and `or`
    is a word where it has nothing on one of its sides.
    """
    read = (_clause(*match) for match in _CLAUSE.findall(text.translate(_QUOTES)))
    found = [clause for clause in read if clause.text.strip(_PUNCTUATION)]
    clauses: list[Clause] = []
    alternative = False
    for place, clause in enumerate(found, start=1):
        if _is_or(clause) and clauses and not alternative and place < len(found):
            alternative = True
        else:
            clauses.append(msgspec.structs.replace(clause, alternative=alternative))
            alternative = False
    return tuple(clauses)


def _clause(minus: str, quoted: str, word: str) -> Clause:
    if not word:
        return Clause(quoted, phrase=True, negated=bool(minus))
    if word[0] == "-" and len(word) > 1:
        return Clause(word[1:], negated=True)
    return Clause(word)


def _is_or(clause: Clause) -> bool:
    return clause.text.lower() == "or" and not (clause.phrase or clause.negated)

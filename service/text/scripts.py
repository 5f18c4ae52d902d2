"""Scripts written without spaces between words: overlapping n-grams stand in for the words."""

import re
import unicodedata

# Han, kana, bopomofo, Hangul and Yi: two characters are about a word.
_IDEOGRAPHIC = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c"
    "\uac00-\ud7a3\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
# Thai, Lao, Myanmar, Khmer, Tai scripts: a letter carries the marks that follow it.
_SOUTH_EAST_ASIAN = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9fe\uaa60-\uaadf"
)

SPACELESS = re.compile(f"[{_IDEOGRAPHIC}]+|[{_SOUTH_EAST_ASIAN}]+")
"""A run of characters of such a script."""

_IDEOGRAPH = re.compile(f"[{_IDEOGRAPHIC}]")


def _marks(ranges: str) -> str:
    pairs = zip(ranges[::3], ranges[2::3], strict=True)
    codes = (code for first, last in pairs for code in range(ord(first), ord(last) + 1))
    return "".join(chr(code) for code in codes if unicodedata.category(chr(code))[0] == "M")


_MARKS = _marks(_SOUTH_EAST_ASIAN)
_CLUSTER = re.compile(f"[^{_MARKS}][{_MARKS}]*")


def ngrams(run: str) -> tuple[list[str], list[str]]:
    """The n-grams of a run in reading order, and the shorter ones that a short query asks for.

    Pairs of characters for ideographic scripts and Hangul, triples of letters with their marks
    for South East Asian ones; a run shorter than that is one n-gram.
    """
    if _IDEOGRAPH.match(run):
        units, size = list(run), 2
    else:
        units, size = _CLUSTER.findall(run), 3
    size = max(1, min(size, len(units)))
    return _slide(units, size), [gram for n in range(1, size) for gram in _slide(units, n)]


def _slide(units: list[str], size: int) -> list[str]:
    return ["".join(units[start : start + size]) for start in range(len(units) - size + 1)]

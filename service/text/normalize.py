# ruff: noqa: RUF001, RUF002 - the letters are meant
"""One spelling of every character: what looks the same to a reader becomes the same text."""

import re
import unicodedata

from service.text.scripts import SPACELESS

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_APOSTROPHES = frozenset("\u00b4\u02b9\u02bb\u02bc\u02bd\u055a\u05f3\u2018\u2019\u201a\u201b\u2032")
# Ellipses and marks of trade, whose compatibility forms would join them to a word.
_BLANKS = frozenset("\u2025\u2026\u2120\u2122")
_SPECIAL = dict.fromkeys(_APOSTROPHES, "'") | {
    "\u2010": "-",
    "\u2011": "-",
    "\u2212": "-",
    "\u2044": "/",
    "\u266f": "#",
    "\u066b": ".",
    "\u066c": ",",
}
_VARIATION = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_SOFT_BREAK = re.compile(r"\u00ad[ \t]*\r?\n[ \t]*")
_HYPHEN_BREAK = re.compile(r"(?<=\w)[-\u2010][ \t]*\r?\n[ \t]*(?=\w)")
_CYRILLIC_APOSTROPHE = re.compile("(?<=[\u0400-\u052f])'(?=[\u0400-\u052f])")
_FIRST_PICTOGRAPH = 0x2300


def clean(text: str) -> tuple[str, bool]:
    """Remove what no UTF-8 database stores (NUL, lone surrogates); True when it changed."""
    cleaned = _UNSTORABLE.sub("", text)
    return cleaned, len(cleaned) != len(text)


_REMEMBERED = 65_536


def _remember(table: dict[int, str | None], code: int, plain: str) -> str | None:
    if len(table) < _REMEMBERED:
        table[code] = plain or None
    return plain or None


class _Characters(dict[int, str | None]):
    """Code point -> its plain spelling: a `str.translate` table that fills itself."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        canonical = unicodedata.normalize("NFC", character)
        if canonical in _APOSTROPHES:
            plain = "'"
        elif canonical in _BLANKS:
            plain = " "
        else:
            plain = "".join(map(_plain, unicodedata.normalize("NFKC", character)))
        if unicodedata.category(character) == "No" and not _is_subscript(character):
            plain = f" {plain} "
        return _remember(self, code, plain)


def _is_subscript(character: str) -> bool:
    """CO\u2082 is one word, but a raised number is a power or a footnote's mark."""
    return unicodedata.decomposition(character).startswith("<sub>")


def _plain(character: str) -> str:
    if character < "\x7f":
        return character
    category = unicodedata.category(character)
    if special := _SPECIAL.get(character):
        return special
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Cf" or _VARIATION.match(character):
        return ""
    if category == "So" and ord(character) >= _FIRST_PICTOGRAPH:
        return f" {character} "
    return " " if category[0] in "PSZC" or category == "No" else character


_CHARACTERS = _Characters()


def normalize(text: str) -> str:
    """Compatibility forms, quotes, dashes, digits and invisible characters made plain.

    Words broken by a hyphen at a line's end are put together again, punctuation outside ASCII
    becomes a blank, and runs of scripts without spaces stand alone. Case and accents stay.
    """
    if text.isascii():
        return _HYPHEN_BREAK.sub("-", text)
    text = _SOFT_BREAK.sub("", text)
    text = _HYPHEN_BREAK.sub("-", text)
    text = text.replace("l\u00b7l", "ll").replace("L\u00b7L", "LL")
    text = unicodedata.normalize("NFC", text).translate(_CHARACTERS)
    text = unicodedata.normalize("NFC", text)
    if "'" in text:
        text = _CYRILLIC_APOSTROPHE.sub("", text)
    return SPACELESS.sub(r" \g<0> ", text)


# Letters that Unicode does not decompose into a base letter and a mark.
_LETTERS = {
    "æ": "ae",
    "œ": "oe",
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "ħ": "h",
    "ŧ": "t",
    "ı": "i",
    "ß": "ss",
    "ſ": "s",
    "ς": "σ",
    "ё": "е",
    "ѐ": "е",
    "ѝ": "и",
    "أ": "ا",
    "إ": "ا",
    "آ": "ا",
    "ٱ": "ا",
    "ى": "ي",
    "ی": "ي",
    "ک": "ك",
    "\u0640": "",
    "ँ": "ं",
}
# Marks above and below letters; vowel points of Hebrew and Arabic.
_POINTS = re.compile(
    "[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u0652"
    "\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]+"
)
# Dots that Hindi may leave out, unlike those of ड़ and ढ़.
_NUKTA = re.compile("(?<=[कखगजफ])\u093c")
# The nasal before a consonant of its own class: हिन्दी is हिंदी.
_NASAL = re.compile("(?:ङ्(?=[क-घ])|ञ्(?=[च-झ])|ण्(?=[ट-ढ])|न्(?=[त-ध])|म्(?=[प-भ]))")
_DECOMPOSED = re.compile("[\u00c0-\u024f\u0370-\u03ff\u1e00-\u1fff]")
_TONES = re.compile("[\u01a0\u01a1\u01af\u01b0\u1ea0-\u1ef9]")


class _BaseLetters(dict[int, str | None]):
    """Code point -> base letters; fills itself."""

    def __missing__(self, code: int) -> str | None:
        letter = chr(code)
        if letter in _LETTERS:
            base = _LETTERS[letter]
        else:
            latin = _DECOMPOSED.match(letter)
            base = _POINTS.sub("", unicodedata.normalize("NFD", letter) if latin else letter)
        return _remember(self, code, base)


_BASE_LETTERS = _BaseLetters()


def fold(word: str) -> str:
    """The lower-case word without accents, points and tatweel: ß is ss, ё is е, alefs are one.

    फ़ is फ, and a nasal before its consonant an anusvara. Letters of their own (й, ї, Arabic teh
    marbuta, Indic vowel signs) stay.
    """
    return _NASAL.sub("ं", _NUKTA.sub("", word.translate(_BASE_LETTERS)))


def has_tones(word: str) -> bool:
    """Whether accents tell syllables apart, as in Vietnamese: such a word is kept beside."""
    return _TONES.search(word) is not None

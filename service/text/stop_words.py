"""Words that a text search configuration may drop; the server says which of them it does."""

import re
import unicodedata

from stopwordsiso import langs, stopwords


def _candidates() -> frozenset[str]:
    """Lists of 58 languages, phrases and elisions (`don't`, `l'eau`) taken apart as texts are."""
    listed = unicodedata.normalize("NFC", " ".join(stopwords(langs())).lower())
    return frozenset(listed.split()) | frozenset(re.split(r"[\s'\u2019]+", listed)) - {""}


STOP_WORD_CANDIDATES = _candidates()

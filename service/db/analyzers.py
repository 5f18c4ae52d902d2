"""The analyzer of a generation: what query and index must share."""

from service.db.pool import Connection
from service.models import Generation
from service.text import STOP_WORD_CANDIDATES, Analyzer

# A configuration drops its stop words, so they leave an empty vector.
STOP_WORDS = """
SELECT word FROM unnest($2::text[]) AS word
WHERE to_tsvector($1::text::regconfig, word) = ''::tsvector
"""

_stop_words: dict[str, frozenset[str]] = {}


async def load_analyzer(connection: Connection, generation: Generation) -> Analyzer:
    """The generation's analyzer; stop words are asked once a configuration and process."""
    configuration = generation.language if generation.analyzer == "language" else "simple"
    if configuration not in _stop_words:
        rows = await connection.fetch(STOP_WORDS, configuration, list(STOP_WORD_CANDIDATES))
        _stop_words[configuration] = frozenset(row["word"] for row in rows)
    return Analyzer(generation.analyzer, configuration, _stop_words[configuration])

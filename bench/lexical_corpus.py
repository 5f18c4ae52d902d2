"""A corpus of real text from this machine, questions about it, and a collection that holds it."""

import random
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.db.keys import find_root_access
from service.db.pool import Connection, Database
from service.indexing.packing import pack_if_grown
from service.models import Collection
from service.text import Analyzer, prepare, tsvector_literal

ENGLISH = Analyzer("language", "english")
WORDS_A_CHUNK = 130
ENDINGS = {".py", ".md", ".rst", ".txt", ".html", ".pyi", ".h"}
QUESTION = re.compile(r"(?:[A-Z][a-z]+|How|What|Return|Returns) (?:[a-z]+[ ]){5,11}[a-z]+(?=[.\n])")
BATCH = 2000

INSERT = """
    INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
                              text, content_hash, length, tsv, bm25)
    SELECT $1, 1, n, 'chunk', 'c' || n, 'd' || n, 0, text, decode(md5(text), 'hex'), length, tsv,
           braid.bm25_document(tsv, length, $6, 1.2, 0.75)
    FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY
             AS given (text, exact, words, o),
         LATERAL (SELECT exact::tsvector || to_tsvector('english', words) AS tsv,
                         $5 + o AS n) AS made,
         LATERAL (SELECT braid.document_length(tsv) AS length) AS counted
"""


def chunks(wanted: int) -> Iterator[str]:
    """Distinct pieces of text of about 130 words from the files of this machine."""
    paths = sysconfig.get_paths()
    seen: set[int] = set()
    for root in (paths["purelib"], paths["stdlib"], "/usr/share", "/usr/lib"):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix not in ENDINGS or not path.is_file():
                continue
            words = path.read_text("utf-8", "ignore").replace("\x00", " ").split()
            for start in range(0, len(words), WORDS_A_CHUNK):
                text = " ".join(words[start : start + WORDS_A_CHUNK])[:4000]
                if len(seen) < wanted and hash(text) not in seen and len(text) > 200:
                    seen.add(hash(text))
                    yield text
            if len(seen) >= wanted:
                return


def questions(texts: Sequence[str], count: int) -> list[str]:
    """Sentences of the corpus, one a chunk."""
    chance = random.Random(7)
    found = []
    for text in chance.sample(list(texts), len(texts)):
        sentences = QUESTION.findall(text)
        if sentences:
            found.append(chance.choice(sentences))
        if len(found) == count:
            break
    return found


async def store(
    connection: Connection, generation_id: int, texts: Sequence[str], after: int
) -> None:
    """Write texts as the chunks after + 1, after + 2, ... of documents of their own."""
    made = [prepare(text, ENGLISH) for text in texts]
    exact = [tsvector_literal({**one.exact, **one.stop_pairs}) for one in made]
    words = [one.words for one in made]
    await connection.execute(INSERT, generation_id, texts, exact, words, after, 1.3 * WORDS_A_CHUNK)


async def load(database: Database, texts: Sequence[str]) -> Collection:
    async with database.administer() as connection:
        collection_id = await connection.fetchval(
            "INSERT INTO braid.collections (team_id, name) VALUES (1, 'bench') RETURNING id"
        )
        generation_id = await connection.fetchval(
            "INSERT INTO braid.generations (team_id, collection_id, provider, language,"
            " average_length) VALUES (1, $1, 'none', 'english', $2) RETURNING id",
            collection_id,
            1.3 * WORDS_A_CHUNK,
        )
        await connection.execute(
            "UPDATE braid.collections SET active_generation_id = $2 WHERE id = $1",
            collection_id,
            generation_id,
        )
        await connection.execute("SELECT braid.create_partition($1)", generation_id)
        for start in range(0, len(texts), BATCH):
            await store(connection, generation_id, texts[start : start + BATCH], start)
    async with database.administer() as connection:
        await connection.execute(f"ANALYZE braid.chunks_{generation_id:d}")
    access = await find_root_access(database, "default", "bench")
    assert access is not None
    assert access.collection is not None
    return access.collection


async def prepared_collection(database: Database, texts: Sequence[str]) -> Collection:
    """The collection of an earlier run on the same folder, or a new one."""
    access = await find_root_access(database, "default", "bench")
    if access is not None and access.collection is not None:
        return access.collection
    started = time.perf_counter()
    collection = await load(database, texts)
    print(f"{len(texts)} chunks loaded in {time.perf_counter() - started:.0f} s", flush=True)
    started = time.perf_counter()
    await pack_if_grown(database, collection.generation)
    print(f"packed in {time.perf_counter() - started:.1f} s", flush=True)
    return collection

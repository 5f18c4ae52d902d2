"""A cross-encoder in process: scores, batches, cancellation, and what is wrong with a folder."""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.credentials import LOOPBACK, credential

from service.errors import ProviderError
from service.models import Credential
from service.providers.addresses import parse_allowed
from service.providers.onnx_reranker import OnnxReranker
from service.providers.outbound import Accounts, Outbound
from service.providers.rerankers import LocalRerankers, Rerankers

DATA = Path(__file__).parent / "data"
MODEL = DATA / "cross-encoder"
DOCUMENTS = ["the garden in spring", "rotate the old key", "every key is new", "the lock"]


@pytest.fixture
async def reranker() -> AsyncIterator[OnnxReranker]:
    made = OnnxReranker(MODEL)
    yield made
    await made.close()


async def test_documents_are_scored_by_reading_both(reranker: OnnxReranker) -> None:
    answer = await reranker.rerank("rotate the key", DOCUMENTS)
    scores = {one.index: one.score for one in answer}
    # One logit a pair, the number of shared words less 2, through a sigmoid.
    expected = {0: 0.26894, 1: 0.73106, 2: 0.26894, 3: 0.26894}
    assert scores == pytest.approx(expected, abs=1e-4)


async def test_batches_do_not_change_scores(reranker: OnnxReranker) -> None:
    many = [" ".join(["key"] * (at % 7)) or "lock" for at in range(50)]
    answer = await reranker.rerank("key", many)
    assert sorted(one.index for one in answer) == list(range(50))
    alone = [(await reranker.rerank("key", [text]))[0].score for text in many[:7]]
    scores = {one.index: one.score for one in answer}
    assert [scores[at] for at in range(7)] == pytest.approx(alone, abs=1e-6)


async def test_a_long_pair_is_cut_to_the_window(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16}))
    reranker = OnnxReranker(folder)
    (answer,) = await reranker.rerank("key", ["key " * 1000])
    assert answer.score == pytest.approx(1, abs=1e-3)
    assert reranker._load()[1].truncation["max_length"] == 16
    await reranker.close()


async def test_it_stops_when_it_is_cancelled(reranker: OnnxReranker) -> None:
    await reranker.rerank("key", ["key"])
    running = asyncio.create_task(reranker.rerank("key", ["key " * 500] * 2000))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()
    async with asyncio.timeout(20):  # and the next call is not behind the rest of it
        assert len(await reranker.rerank("key", ["key"])) == 1


async def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = OnnxReranker(tmp_path / "empty")
    with pytest.raises(ProviderError, match="has no model"):
        await empty.rerank("key", ["key"])
    broken = tmp_path / "broken"
    shutil.copytree(MODEL, broken)
    (broken / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(ProviderError, match="the local reranker failed"):
        await OnnxReranker(broken).rerank("key", ["key"])


class NoCredentials:
    async def find(self, team_id: int, name: str) -> Credential | None:  # noqa: ARG002
        return credential("local", None, secret=None) if name == "mine" else None


def rerankers(folder: Path | None) -> Rerankers:
    accounts = Accounts(NoCredentials(), Outbound(parse_allowed(LOOPBACK)))
    return Rerankers(accounts, LocalRerankers(folder))


@pytest.mark.parametrize("provider", ["local", "mine"])
async def test_a_local_model_is_found_by_the_name_of_its_folder(provider: str) -> None:
    found = await rerankers(DATA).get(1, provider, "cross-encoder")
    assert found is not None
    ranked = await found.rerank("rotate the key", DOCUMENTS)
    assert [one.index for one in ranked] == [1, 0, 2, 3]
    assert await rerankers(DATA).get(1, provider, None) is None


@pytest.mark.parametrize("model", ["other", "..", "../data/cross-encoder", "/etc", "", "a/b", ".x"])
async def test_a_name_is_no_path(model: str) -> None:
    with pytest.raises(ProviderError, match="no such local reranker"):
        await rerankers(DATA).get(1, "local", model)


async def test_without_the_operators_folder_there_is_none() -> None:
    with pytest.raises(ProviderError, match="BRAID_RERANKER_DIR"):
        await rerankers(None).get(1, "local", "cross-encoder")


async def test_a_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "service.providers.onnx_reranker")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ProviderError, match=r"pip install 'braid\[rerank\]'"):
        await rerankers(DATA).get(1, "local", "cross-encoder")

import sys

import pytest

from service.errors import ProviderError
from service.providers.local import LocalEmbedder
from service.providers.registry import EmbedderOptions, create_embedder

MODEL = "multilingual-e5-small"


def test_the_local_model_is_shared_by_everyone_in_the_process() -> None:
    first = create_embedder("local", MODEL)
    assert isinstance(first, LocalEmbedder)
    assert create_embedder("local", MODEL, 384) is first


async def test_a_closed_local_model_is_replaced() -> None:
    options = EmbedderOptions(document_threads=2)
    first = create_embedder("local", MODEL, options=options)
    await first.close()
    second = create_embedder("local", MODEL, options=options)
    assert second is not first
    await second.close()


@pytest.mark.parametrize(
    ("provider", "model", "dim", "message"),
    [
        (
            "nobody",
            "any",
            None,
            "unknown embedding provider, expected one of: local, openai, voyage",
        ),
        ("local", "other", None, "the local embedder has one model: multilingual-e5-small"),
        ("local", MODEL, 768, "multilingual-e5-small has 384 dimensions"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    provider: str, model: str, dim: int | None, message: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        create_embedder(provider, model, dim)
    assert str(caught.value) == message


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers"])
def test_a_missing_extra_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [name for name in sys.modules if name.startswith("service.providers.")]:
        if name.rsplit(".", 1)[1] in {"local", "e5_encoder", "e5_tokenizer"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ProviderError) as caught:
        create_embedder("local", MODEL)
    assert str(caught.value) == "the local embedder is not installed: pip install 'braid[local]'"

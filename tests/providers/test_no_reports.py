"""The library that runs models keeps its use to itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = "import service.providers.e5_encoder, service.providers.onnx_reranker"


def test_nothing_is_gathered_for_the_maker_of_the_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    environment = {
        name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"
    }
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("XDG_CACHE_HOME", None)
    subprocess.run([sys.executable, "-c", USE], env=environment, cwd=tmp_path, check=True)
    assert list(tmp_path.rglob("*")) == []

"""The page of metrics names everything that is measured, and nothing else."""

import re
from pathlib import Path

import pytest

from service import instruments
from service.metrics import Instrument

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
MEASURED = [one for one in vars(instruments).values() if isinstance(one, Instrument)]
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("instrument", MEASURED, ids=lambda one: one.name)
def test_a_metric_is_documented_with_its_kind_and_labels(instrument: Instrument) -> None:
    labels = ", ".join(f"`{label.replace('.', '_')}`" for label in instrument.labels)
    rows = {name: (kind, given, meaning) for name, kind, given, meaning in ROW.findall(PAGE)}
    kind, given, meaning = rows[instrument.prometheus_name]
    assert (kind, given) == (instrument.kind, labels or "-")
    assert meaning.startswith(instrument.description)


def test_no_documented_metric_is_unknown() -> None:
    assert {row[0] for row in ROW.findall(PAGE)} == {one.prometheus_name for one in MEASURED}

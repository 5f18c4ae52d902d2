"""The embedded server builds indexes with a part of the memory that there is."""

from pathlib import Path

import pytest

from service.db.machine_memory import MB, maintenance_mb, memory_bytes


def test_a_container_s_limit_counts_when_it_is_lower(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    physical = memory_bytes(tmp_path / "nowhere")
    limit.write_text("1000000\n")
    assert memory_bytes(limit) == 1_000_000
    limit.write_text("max\n")
    assert memory_bytes(limit) == physical > 0


@pytest.mark.parametrize(("memory", "expected"), [(0, 64), (8 << 30, 512), (1 << 40, 1024)])
def test_building_takes_a_sixteenth_within_bounds(memory: int, expected: int) -> None:
    assert maintenance_mb(memory) == expected
    assert expected * MB <= max(memory // 16, 64 * MB)

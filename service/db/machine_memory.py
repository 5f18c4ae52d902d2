"""How much memory this machine, or the container on it, has for building indexes."""

import os
from pathlib import Path

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
MB = 1 << 20
LEAST_MB, MOST_MB = 64, 1024
PART = 16


def memory_bytes(container_limit: Path = CONTAINER_LIMIT) -> int:
    """Memory of the machine, or less if a container limits it; 0 when nobody tells."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
    try:
        return min(physical, int(container_limit.read_text()))
    except (ValueError, OSError):
        return physical


def maintenance_mb(memory: int) -> int:
    """What building an index may take of it: a sixteenth, 64 MB to 1 GB."""
    return min(max(memory // PART // MB, LEAST_MB), MOST_MB)

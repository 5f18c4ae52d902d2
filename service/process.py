"""What the operating system says of this process."""

import os
import time
from pathlib import Path

from service.instruments import PROCESS_CPU, PROCESS_FILES, PROCESS_MEMORY

PROC = Path("/proc/self")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def observe_process() -> None:
    """Set the gauges of the process; memory and files only where there is a /proc."""
    PROCESS_CPU.set(time.process_time())
    if PROC.is_dir():
        PROCESS_MEMORY.set(int((PROC / "statm").read_text().split()[1]) * PAGE_BYTES)
        PROCESS_FILES.set(sum(1 for _ in (PROC / "fd").iterdir()))

"""Load on the processors, under which plans must be the same."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator


@contextlib.contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Keep processors busy, with other work than the solver's."""
    loop = "while True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()

"""Many command lines in child processes, and what has to hold of each."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BATCH = 50
"""Command lines of one process."""
GRACE, MEMORY_MIB, LONGEST_LINE = 2.0, 2048, 640
CODES = (0, 2, 3, 4, 5)
"""What the interface has for a command line that is not interrupted; 1 is an internal error."""


@dataclass(frozen=True)
class Outcome:
    arguments: Sequence[str]
    code: int | None
    seconds: float
    mib: float
    err: str
    out: str = ""

    def fault(self, timeout: float) -> str | None:
        """What is wrong with it, in words."""
        if self.code is None:
            return f"ended the process: {self.err[-3000:]}"
        if "Traceback" in self.err or self.code not in CODES:
            return f"exit code {self.code}: {self.err[-3000:]}"
        if self.seconds > timeout + GRACE:
            return f"took {self.seconds:.1f} s of {timeout} s"
        if self.mib > MEMORY_MIB:
            return f"took {self.mib:.0f} MiB"
        lines = self.err.splitlines()
        if self.code == 2 and len(lines) != 1:
            return f"a message of {len(lines)} lines: {self.err[:2000]}"
        longest = max(map(len, lines), default=0)
        if longest > LONGEST_LINE:
            return f"a message of {longest} characters: {self.err[:2000]}"
        return None


def run_all(cases: Sequence[Sequence[str]], folder: Path) -> list[Outcome]:
    """Every command line's outcome; a batch that ends early loses no more than one."""
    batches = [cases[n : n + BATCH] for n in range(0, len(cases), BATCH)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(_batch, batches, [folder / str(n) for n in range(len(batches))])
        return [outcome for batch in found for outcome in batch]


def _batch(cases: Sequence[Sequence[str]], stem: Path) -> list[Outcome]:
    given, results = stem.with_suffix(".in"), stem.with_suffix(".out")
    found: list[Outcome] = []
    while len(found) < len(cases):
        given.write_text(json.dumps(list(map(list, cases[len(found) :]))))
        child = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.child", given, results],
            cwd=ROOT,
            env={**os.environ, "CPEMBED_TUNE_DIR": str(stem), "CPEMBED_CALIBRATION_DIR": str(stem)},
            capture_output=True,
            text=True,
            preexec_fn=_limited,
        )
        for line in results.read_text().splitlines():
            found.append(_outcome(cases[len(found)], json.loads(line)))
        if len(found) < len(cases):
            # Nothing was written of the one that ended the process.
            what = f"exit code {child.returncode}\n{child.stderr}"
            found.append(Outcome(cases[len(found)], None, 0.0, 0.0, what))
    return found


def _outcome(case: Sequence[str], found: dict[str, object]) -> Outcome:
    # Wall time has the other work of the machine in it, CPU time that of the solver's threads.
    seconds = min(found["wall"], found["cpu"])
    return Outcome(case, found["code"], seconds, found["mib"], found["err"], found["out"])


def _limited() -> None:
    # Address space, of which threads reserve more than they use: what is used is measured.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

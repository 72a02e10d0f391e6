"""Runs command lines one after the other in this process, and says how each came out.

    python -m tests.fuzz.child CASES RESULTS

``CASES`` is a JSON list of argument lists. Each gives a line of JSON in ``RESULTS``: the exit code,
seconds of wall time and of the process's CPUs, the most memory in MiB, and what was printed. A
command that is not done after ``HANG`` seconds ends the process, with the place where it was on
stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import sys
import time
from pathlib import Path

from cpembed.cli import main

HANG = 30


def peak_mib() -> float:
    """The most memory that the process had at a time since :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def run(arguments: list[str]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    forget_peak()
    faulthandler.dump_traceback_later(HANG, exit=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    result = {
        "code": code,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "mib": peak_mib(),
        "err": err.getvalue(),
        "out": out.getvalue()[:2000],
    }
    faulthandler.cancel_dump_traceback_later()
    return result


if __name__ == "__main__":
    cases, results = map(Path, sys.argv[1:])
    with results.open("w") as lines:
        for case in json.loads(cases.read_text()):
            lines.write(json.dumps(run(case)) + "\n")
            lines.flush()

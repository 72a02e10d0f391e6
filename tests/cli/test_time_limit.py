"""Commands with a limit end, whatever watches them: profilers, debuggers, coverage."""

from __future__ import annotations

import subprocess
import sys

import pytest

SOLVE = ("solve", "gemm", "m=8", "n=32", "k=64", "--target", "avx512_vnni", "--timeout", "20")
STOPPED = (
    *("solve", "conv2d", "n=1", "c=4", "h=5", "w=5", "k=4", "r=3", "s=3", "pad=1"),
    *("--target", "wmma_f16_f16_32x8x16", "--constraints", "complete", "--timeout", "0.5"),
)
TRACED = """
import sys, threading
def trace(frame, event, argument):
    return trace
threading.settrace(trace)
sys.settrace(trace)
from cpembed.cli import main
code = main(sys.argv[1:])
left = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
sys.exit(f"left: {left}" if left else code)
"""
WATCHERS = {"profile": ("-m", "cProfile", "-m", "cpembed"), "trace": ("-c", TRACED)}


@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("arguments, codes", [(SOLVE, {0}), (STOPPED, {0, 4})])
def test_a_watched_command_ends(watcher: str, arguments: tuple[str, ...], codes: set[int]) -> None:
    command = [sys.executable, *WATCHERS[watcher], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    # cProfile ends with 0 whatever the program's code is.
    assert done.returncode in codes | {0}, done.stderr
    assert "avx512_vnni" in done.stdout or "wmma" in done.stdout

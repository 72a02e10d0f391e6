"""Commands with a limit end, whatever watches them: profilers, debuggers, coverage."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.cpsat import Status
from tests.cli.calling import Caller

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


@pytest.mark.quick(1)
@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("arguments, codes", [(SOLVE, {0}), (STOPPED, {0, 4})])
def test_a_watched_command_ends(watcher: str, arguments: tuple[str, ...], codes: set[int]) -> None:
    command = [sys.executable, *WATCHERS[watcher], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    # cProfile ends with 0 whatever the program's code is.
    assert done.returncode in codes | {0}, done.stderr
    assert "avx512_vnni" in done.stdout or "wmma" in done.stdout


def test_a_stopped_search_says_which_limit_and_the_remedy(cpembed: Caller) -> None:
    called = cpembed(*SOLVE[:-1], "0.000001")
    assert called.code == 4, called
    assert called.err == (
        "cpembed: no embedding of avx512_vnni in gemm under in_place_padded was found and proven "
        "before the time limit: give a longer --timeout\n"
    )
    assert "none, which is not proven: stopped by the time limit; " in called.out


def test_without_a_time_limit_it_is_the_memory() -> None:
    layer = workload("gemm m=8 n=16 k=16", "vta_1x16x16")
    found = solve(layer, "vta_1x16x16", top=1, timeout=60)
    stopped = replace(found, status=Status.UNKNOWN, count=0, embeddings=(), complete=False)
    assert stopped.is_stopped
    assert stopped.why_nothing.endswith("before the time limit: give a longer --timeout")
    assert replace(stopped, timeout=None).why_nothing == (
        "no candidate was found and proven before the memory limit: take a smaller workload or a "
        "narrower set"
    )

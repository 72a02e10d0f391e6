"""Ctrl-C: whenever it comes, one line, exit code 130, no traceback, and nothing that was kept is
lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cpembed.driver import bench_maker
from tests.cli.calling import Called, Caller, in_a_process
from tests.features import needs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")

needs_vnni = needs("avx512_vnni")

GEMM = ("gemm", "m=8", "n=32", "k=32")
VTA = ("--target", "vta_1x16x16")


@pytest.fixture
def tune(tmp_path: Path, cpembed: Caller) -> Callable[..., Called]:
    def call(*more: str) -> Called:
        return cpembed("tune", *GEMM, *VTA, "--database", str(tmp_path), "--json", *more)

    return call


def interrupted(function: Callable[..., Any], at: int, *, within: Callable[[], None]) -> Any:
    """The function, at whose call of a number the signal comes, ``within`` something."""
    calls = 0

    def replacement(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            within()
        return function(*arguments, **named)

    return replacement


def raise_signal() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def as_a_library_does() -> None:
    """Functions of Python's that C++ calls: what they raise comes back as another error."""
    try:
        raise_signal()
        for _ in range(10):  # The handler runs between two steps of Python.
            pass
    except BaseException as error:
        raise RuntimeError("from C++") from error


class Finalised:
    def __del__(self) -> None:
        raise_signal()
        for _ in range(10):
            pass


# In a process of its own: a signal that comes late would end the one of the tests.
TUNED = """
import signal, sys
from cpembed.cli import main
from cpembed.targets.vta.target import VtaTuner
from tests.cli import test_interrupt as tests

before = signal.getsignal(signal.SIGINT)
run = VtaTuner.run_trial
VtaTuner.run_trial = tests.interrupted(run, 3, within=getattr(tests, sys.argv.pop(1)))
code = main(sys.argv[1:])
assert signal.getsignal(signal.SIGINT) is before
sys.exit(code)
"""


@pytest.mark.parametrize("within", [raise_signal, as_a_library_does, Finalised])
def test_a_trial_is_finished_and_kept(
    tune: Callable[..., Called], tmp_path: Path, within: Callable[[], None]
) -> None:
    call = ("tune", *GEMM, *VTA, "--database", str(tmp_path), "--json", "--trials", "6")
    called = in_a_process(within.__name__, *call, script=TUNED)
    assert called.code == 130, called
    assert called.err.startswith("cpembed: interrupted: 3 of 6 trials are kept in ")
    assert called.err.endswith("; the same command resumes\n")
    assert called.err.count("\n") == 1
    assert called.json["trials"] == 3
    again = tune("--trials", "6")
    assert (again.code, again.json["measured"]) == (0, 3)


def test_a_row_is_finished_and_kept(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("bench", "deepbench", *VTA, "--no-run", "--layers", "12,48", "--results", str(tmp_path))
    with monkeypatch.context() as patch:
        found = interrupted(bench_maker.solve, 2, within=as_a_library_does)
        patch.setattr(bench_maker, "solve", found)
        called = cpembed(*call)
    called.is_one_line_error(130, "interrupted: 1 of 2 rows are kept in", "resumes")
    assert "1 of 2 rows taken" in cpembed(*call).err


@pytest.mark.parametrize("within", [as_a_library_does, raise_signal])
def test_elsewhere_an_error_that_comes_of_it_is_an_interruption(
    cpembed: Caller, monkeypatch: pytest.MonkeyPatch, within: Callable[[], None]
) -> None:
    from cpembed.driver import solve as api

    monkeypatch.setattr(api, "find_best", interrupted(api.find_best, 1, within=within))
    called = cpembed("solve", *GEMM, *VTA)
    assert (called.code, called.err.strip()) == (130, "cpembed: interrupted")


def test_a_second_one_ends_at_once_and_one_in_a_finaliser_is_not_lost() -> None:
    script = """
import os, signal, sys
from cpembed.cli import interrupt

def handled():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        pass

class Finalised:
    def __del__(self):
        handled()

if sys.argv[1] == "finaliser":
    with interrupt.interruptible(then_ignored=True):
        Finalised()
else:
    with interrupt.Stop("row", lambda: "3 rows are kept") as stop:
        handled()
        assert stop.requested
        handled()
print("not reached")
"""
    called = in_a_process("finaliser", script=script)
    assert called == Called(130, "", "cpembed: interrupted\n")
    called = in_a_process("second", script=script)
    assert called == Called(130, "", "cpembed: 3 rows are kept\n")


def test_the_exit_code_is_not_the_signal_s_where_it_passed_through_exec(tmp_path: Path) -> None:
    """As in the making of a dataclass; ``python -m`` then has itself killed by the signal."""
    (tmp_path / "interrupted.py").write_text("""
import sys
from cpembed.driver import solve
from cpembed.cli import main
from cpembed.targets.vta.target import VtaTuner

def find_best(*arguments, **named):
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [n for n in range(10)]")

solve.find_best = find_best
sys.exit(main())
""")
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", "solve", *GEMM, *VTA],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.getcwd()))},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (130, "cpembed: interrupted")


def test_an_import_that_prints_what_ends_it_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        """
import os, signal, traceback
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):
        pass
except BaseException as error:
    traceback.print_exc()
    raise ImportError from error
"""
    )
    script = f"""
import sys
from cpembed.cli import interrupt
from tests.features import needs
sys.path.insert(0, {str(tmp_path)!r})
with interrupt.interruptible(then_ignored=True):
    import printing
"""
    assert in_a_process(script=script) == Called(130, "", "cpembed: interrupted\n")


def test_who_ignores_it_goes_on_ignoring_it(tune: Callable[..., Called]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        raise_signal()
        assert tune("--trials", "2").code == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# -------------------------------------------------------------------- real signals, at any moment


def moments(
    command: tuple[str, ...], folder: Path, count: int
) -> Iterator[tuple[float, subprocess.CompletedProcess[str]]]:
    """The command interrupted at random moments of its life, which is measured first; after the
    first tenth, in which Python itself starts. Where it came to its end, it begins anew."""
    of = [sys.executable, "-m", "cpembed", *command, str(folder)]
    generator = random.Random(7)
    started = time.monotonic()
    done = subprocess.run(of, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    life = time.monotonic() - started
    forget(folder)
    for _ in range(count):
        after = life * generator.uniform(0.1, 1.0)
        process = subprocess.Popen(
            of,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        yield after, subprocess.CompletedProcess(of, process.returncode, out, err)
        if process.returncode == 0:
            forget(folder)


def forget(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        path.unlink()


def is_clean(done: subprocess.CompletedProcess[str], after: float) -> None:
    """Either it was done before, or it was interrupted in one line."""
    assert done.returncode in (0, 130), (after, done)
    assert "Traceback" not in done.stderr, (after, done.stderr)
    assert "Exception ignored" not in done.stderr, (after, done.stderr)
    if done.returncode == 130:
        last = done.stderr.splitlines()[-1]
        assert last.startswith("cpembed: interrupted"), (after, done.stderr)


def kept_rows(folder: Path) -> list[bytes]:
    return [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]


VNNI = ("--target", "avx512_vnni")
TUNE_VTA = ("tune", *GEMM, *VTA, "--trials", "40", "--database")
TUNE_CPU = ("tune", *GEMM, *VNNI, "--trials", "4", "--database")
SOLVE = ("bench", "deepbench", *VTA, "--layers", "12-60", "--no-run", "--fresh", "--results")
RUN = ("bench", "odd", *VNNI, "--layers", "0-2", "--fresh", "--results")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(TUNE_VTA, id="tune, simulated"),
        pytest.param(TUNE_CPU, id="tune, timed", marks=needs_vnni),
        pytest.param(SOLVE, id="bench, solved"),
        pytest.param(RUN, id="bench, timed", marks=needs_vnni),
    ],
)
def test_at_any_moment_it_is_one_line_and_nothing_is_lost(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPEMBED_TUNE_DIR", str(tmp_path / "tuned"))
    folder = tmp_path / "kept"
    met, kept = 0, list[bytes]()
    for after, done in moments(command, folder, 13):
        is_clean(done, after)
        met += "are kept in" in done.stderr
        lines = kept_rows(folder)
        for line in lines:
            msgspec.json.decode(line)
        if "--fresh" not in command:
            assert lines[: len(kept)] == kept
            kept = lines
        if done.returncode == 0:
            kept = []
    assert met, "no interruption met a trial or a row: choose a longer command"

"""What workers are asked to do in tests; some of it ends them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from cpembed.errors import LoweringError, WorkloadError
from cpembed.runtime.cluster import Task


def square(number: int) -> tuple[int, int]:
    """With the process that computed it."""
    return number * number, os.getpid()


def slow_square(number: int, seconds: float) -> tuple[int, int]:
    time.sleep(seconds)
    return square(number)


def noted(folder: Path, name: str) -> int:
    """How often this was begun, this time included."""
    path = folder / name
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


def killed_at_first(folder: Path, name: str, *, whole_worker: bool) -> str:
    """Its process, or that of the whole worker, is killed in the middle of the first attempt."""
    if noted(folder, name) == 1:
        kill(whole_worker=whole_worker)
    return name


def poison(folder: Path, name: str, *, whole_worker: bool) -> NoReturn:
    noted(folder, name)
    kill(whole_worker=whole_worker)


def kill(*, whole_worker: bool) -> NoReturn:
    os.kill(os.getppid() if whole_worker else os.getpid(), signal.SIGKILL)
    # Killed with its parent.
    time.sleep(60)
    raise AssertionError("it is still there")


def read_nowhere(folder: Path, name: str) -> NoReturn:
    noted(folder, name)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("it is still there")


def refuse() -> NoReturn:
    raise LoweringError("no schedule fits")


def refuse_words() -> NoReturn:
    raise WorkloadError("the words are wrong")


def fail() -> NoReturn:
    raise KeyError("a bug")


def open_nothing() -> NoReturn:
    raise FileNotFoundError("nothing there")


def hold_the_lock(seconds: float) -> None:
    """Python's: no other thread of the process does anything."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def variable(name: str) -> str | None:
    return os.environ.get(name)


def start_a_process() -> int:
    """Of multiprocessing, which daemons may not."""
    import multiprocessing

    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    return process.exitcode or 0


def squares(numbers: range, seconds: float = 0.0) -> list[Task]:
    return [Task(f"{n}", slow_square, (n, seconds), f"squaring {n}") for n in numbers]

"""Functions that a worker is asked to execute, some of which end it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from cpembed.errors import DamagedStore, LoweringError
from cpembed.runtime.worker import call
from cpembed.steps import step


def identity() -> int:
    return os.getpid()


def nested() -> tuple[int, int]:
    return os.getpid(), call(identity)


def counted(number: int, *, progress: Callable[[str, int], None]) -> int:
    for done in range(number):
        progress("counting", done)
    return number


def refuse() -> NoReturn:
    raise LoweringError("this one cannot be expressed")


def fail() -> NoReturn:
    raise KeyError("a bug")


def abort_as_llvm_does() -> None:
    with step("compiling a kernel of test"):
        os.write(2, b"LLVM ERROR: Do not know how to split this operator's operand!\n")
        os.abort()


def raise_signal(name: str) -> None:
    with step("running the test kernel"):
        os.kill(os.getpid(), getattr(signal, name))


def read_nowhere() -> None:
    with step("running the test kernel"):
        ctypes.string_at(8)


def exit_now() -> None:
    with step("running the test kernel"):
        os._exit(3)


def sleep_in_a_step(seconds: float) -> None:
    with step("running the test kernel"):
        time.sleep(seconds)


def sleep_outside(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def take_memory() -> int:
    with step("running the test kernel"):
        return len(bytearray(100 * 2**30))


def print_something() -> None:
    print("not for the user's eyes")
    print("neither is this", file=sys.stderr)


def warn() -> None:
    warnings.warn("a row is damaged", DamagedStore, stacklevel=1)


def slow_square(number: int) -> tuple[int, int]:
    """Its square and the process that computed it, smaller numbers after a longer time."""
    time.sleep(0.4 if number < 2 else 0.0)
    return number * number, os.getpid()


def refused(number: int) -> int:
    if number == 1:
        raise LoweringError("one is refused")
    return number


def ended(number: int) -> int:
    if number == 1:
        os._exit(7)
    return number


def sleeping(seconds: float) -> float:
    time.sleep(seconds)
    return seconds

"""Images: executables made without a linker, and what becomes of those that fail."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from cpembed import steps
from cpembed.codegen.plan import KernelPlan
from cpembed.errors import CrashError, InvariantError, LoweringError
from cpembed.runtime import worker
from cpembed.steps import step
from cpembed.targets.arm.emulator import EmulatedProcessor
from tests.unit.targets.arm.emulation import needs_emulator

SIZE = 77
SOURCE = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({SIZE},), "uint8"), C: T.Buffer(({SIZE},), "uint8")):
    T.func_attr({{"tirx.noalias": True, "global_symbol": "main"}})
    with T.sblock("root"):
        T.reads(A[0:{SIZE}])
        T.writes(C[0:{SIZE}])
        for i in T.serial({SIZE}):
            with T.sblock("copy"):
                at = T.axis.spatial({SIZE}, i)
                C[at] = A[at]
        CALL
"""
PLACES = "T.address_of(C[0]), T.address_of(A[0])"


def plan(call: str = "T.evaluate(0)", functions: str = "") -> KernelPlan:
    """A kernel that copies its input and makes a call."""
    return KernelPlan("test", SOURCE.replace("CALL", call), functions=functions)


def function(name: str, body: str) -> KernelPlan:
    """The same with a function in LLVM's language, of both buffers."""
    text = f"define i32 @{name}(ptr %c, ptr %a) alwaysinline {{\n{body}\n  ret i32 0\n}}\n"
    return plan(f'T.evaluate(T.call_extern("int32", "{name}", {PLACES}))', text)


def called(kernel: KernelPlan) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel was given, and what it left."""
    given = np.arange(1, SIZE + 1, dtype=np.uint8)
    left = np.zeros_like(given)
    EmulatedProcessor().compile_plan(kernel)(given.copy(), left)
    return given, left


@needs_emulator
def test_a_kernel_works_on_its_buffers() -> None:
    given, left = called(plan())
    np.testing.assert_array_equal(left, given)


MOVES = {
    "up": ("c5", "c"),
    "down": ("c", "c5"),
    "apart": ("c", "a"),
}


@needs_emulator
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("size", [0, 1, 40])
def test_memory_is_moved(move: str, size: int) -> None:
    target, source = MOVES[move]
    body = f"""
  %c5 = getelementptr i8, ptr %c, i64 5
  call void @llvm.memmove.p0.p0.i64(ptr %{target}, ptr %{source}, i64 {size}, i1 false)"""
    given, left = called(function("moving", body))
    expected = given.copy()
    start = {"c": 0, "c5": 5}
    values = given if source == "a" else given[start[source] :]
    expected[start[target] : start[target] + size] = values[:size].copy()
    np.testing.assert_array_equal(left, expected)


@needs_emulator
@pytest.mark.parametrize("size", [0, 1, 70])
def test_memory_is_set_and_copied(size: int) -> None:
    body = f"""
  call void @llvm.memset.p0.i64(ptr %c, i8 9, i64 {size}, i1 false)
  %c71 = getelementptr i8, ptr %c, i64 71
  call void @llvm.memcpy.p0.p0.i64(ptr %c71, ptr %a, i64 6, i1 false)"""
    given, left = called(function("setting", body))
    expected = given.copy()
    expected[:size] = 9
    expected[71:] = given[:6]
    np.testing.assert_array_equal(left, expected)


WORKSPACES = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((5000,), "uint8"), C: T.Buffer((5000,), "uint8")):
    T.func_attr({"tirx.noalias": True, "global_symbol": "main"})
    with T.sblock("root"):
        first = T.sblock_alloc_buffer((5000,), "uint8")
        second = T.sblock_alloc_buffer((5000,), "uint8")
        for turn in T.serial(3):
            for i in T.serial(5000):
                with T.sblock("first"):
                    at = T.axis.spatial(5000, i)
                    first[at] = A[4999 - at] + T.uint8(1)
            for i in T.serial(5000):
                with T.sblock("second"):
                    at = T.axis.spatial(5000, i)
                    second[at] = first[4999 - at] * T.uint8(3)
            for i in T.serial(5000):
                with T.sblock("out"):
                    at = T.axis.spatial(5000, i)
                    C[at] = second[at] + first[at]
"""


@needs_emulator
def test_a_kernel_has_workspaces() -> None:
    kernel = EmulatedProcessor().compile_plan(KernelPlan("test", WORKSPACES))
    assert "TVMBackendFreeWorkspace" in kernel.assembly().split("__tvm_ffi_main:")[1]
    given = (np.arange(5000) % 251).astype(np.uint8)
    left = np.zeros_like(given)
    kernel(given, left)
    np.testing.assert_array_equal(left, (given + 1) * 3 + given[::-1] + 1)


def test_a_function_that_nothing_provides_is_named() -> None:
    call = 'T.evaluate(T.call_extern("int32", "nobody"))'
    kernel = EmulatedProcessor().compile_plan(plan(call))
    with pytest.raises(LoweringError, match="needs nobody, which an image does not provide"):
        kernel(np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8))


@needs_emulator
def test_refused_arguments_are_an_error() -> None:
    kernel = EmulatedProcessor().compile_plan(plan())
    with pytest.raises(InvariantError, match="running the test kernel ended in exit code 1"):
        kernel(np.zeros(SIZE - 1, np.uint8), np.zeros(SIZE, np.uint8))


@needs_emulator
def test_a_wild_access_is_one_line() -> None:
    kernel = EmulatedProcessor().compile_plan(function("wild", "  store volatile i8 0, ptr null"))
    with pytest.raises(CrashError, match="running the test kernel ended in SIGSEGV") as found:
        kernel(np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8))
    assert found.value.exit_code == 1


LOOP = "  br label %again\nagain:\n  store volatile i8 0, ptr %c\n  br label %again\nnever:"


def hang() -> None:
    """In the worker: a kernel without an end."""
    kernel = EmulatedProcessor().compile_plan(function("hanging", LOOP))
    with step("running without an end"):
        kernel(np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8))


@pytest.mark.slow
@needs_emulator
def test_a_hang_is_ended_with_its_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = "5.0625"
    monkeypatch.setenv(steps.LIMIT_VARIABLE, limit)
    monkeypatch.delenv("CPEMBED_IN_PROCESS", raising=False)
    with pytest.raises(CrashError, match="running without an end took too long"):
        worker.call(hang)
    worker.retire()
    deadline = time.monotonic() + 5
    while emulators_with(limit) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not emulators_with(limit)


def emulators_with(limit: str) -> list[str]:
    """Processes of the emulator whose environment has a limit."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"qemu-aarch64" in (process / "cmdline").read_bytes() and (
                f"{steps.LIMIT_VARIABLE}={limit}".encode() in (process / "environ").read_bytes()
            ):
                found.append(process.name)
        except OSError:
            continue
    return found

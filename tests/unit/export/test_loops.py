"""Loops of libraries, with kernels that are written in C, beside the same loops in numpy."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.errors import BackendUnavailable
from cpembed.export.layout import workspace_of
from cpembed.export.library import compiler, write_library
from cpembed.export.loader import Library, LibraryError
from cpembed.export.program import Buffer, Call, CallLoop, Move, Moving, Program, Role
from tests.unit.export.handwritten import ADD, NEGATE, compiled

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

LESS = """
/* target[0] = the first number is less than 100, as a byte. */
KERNEL(less) {
  UNUSED;
  ((uint8_t *)TENSOR(1)->data)[0] = ((int32_t *)TENSOR(0)->data)[0] < 100;
  return 0;
}
"""
STEPS = 5


def kernels() -> dict[str, object]:
    texts = {"add": ADD, "negate": NEGATE, "less": LESS}
    return {name: compiled(text, name) for name, text in texts.items()}


def workspace(*names: str, size: int, dtype: str = "int32") -> list[Buffer]:
    return [Buffer(name, dtype, size, Role.WORKSPACE) for name in names]


def running_sums(size: int, backwards: bool, padded: bool = False) -> Program:
    """``s = -(s + x[t])`` from the last or the first step on; all ``s + x[t]``, and the last s.

    Where ``padded``, an input says how many steps there are.
    """
    limits = (Buffer("n", "int64", 1, Role.INPUT, ()),) if padded else ()
    aligned = 4 * size % 64 == 0
    window = Role.WINDOW if aligned else Role.WORKSPACE
    moves = (
        Move(Moving.START, "s0", "s"),
        Move(Moving.VIEW if aligned else Moving.READ, "x", "slice", backwards),
        Move(Moving.WRITE, "sum", "sums", backwards),
        Move(Moving.SWAP, "next", "s"),
        Move(Moving.FINISH, "s", "last"),
    )
    return Program(
        "running",
        (
            Buffer("s0", "int32", size, Role.INPUT, (size,)),
            Buffer("x", "int32", STEPS * size, Role.INPUT, (STEPS, size)),
            Buffer("last", "int32", size, Role.OUTPUT, (size,)),
            Buffer("sums", "int32", STEPS * size, Role.OUTPUT, (STEPS, size)),
            Buffer("slice", "int32", size, window),
            *workspace("s", "sum", "next", size=size),
            *limits,
        ),
        kernels(),  # type: ignore[arg-type]
        (),
        (Call("add", ("s", "slice", "sum")), Call("negate", ("sum", "next"))),
        loops=(CallLoop("loop", 0, 2, STEPS, moves, limit="n" if padded else None, padded=padded),),
    )


@pytest.mark.parametrize("size", [16, 20, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_states_slices_and_results(size: int, backwards: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(size)
    s0 = random.integers(-9, 9, size, dtype=np.int32)
    x = random.integers(-9, 9, (STEPS, size), dtype=np.int32)
    sums, state = np.zeros_like(x), s0
    for step in reversed(range(STEPS)) if backwards else range(STEPS):
        sums[step] = state + x[step]
        state = -sums[step]
    path = write_library(running_sums(size, backwards), tmp_path).path
    with Library(path, "running", threads=2) as library:
        for _ in range(2):
            last, results = library.run(s0, x)
            np.testing.assert_array_equal(last, state)
            np.testing.assert_array_equal(results, sums)
        _, times = library.run_timed(s0, x)
        assert (times > 0).all()
        with pytest.raises(LibraryError, match="out of range"):
            library.run_steps(0, 1, s0, x)


@pytest.mark.parametrize("size", [16, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_fewer_steps_end_with_their_last_slice(size: int, backwards: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(size)
    s0 = random.integers(-9, 9, size, dtype=np.int32)
    x = random.integers(-9, 9, (STEPS, size), dtype=np.int32)
    path = write_library(running_sums(size, backwards, padded=True), tmp_path).path
    with Library(path, "running", threads=2) as library:
        for count in (3, STEPS, 1, 0, -1, STEPS + 2):
            steps = max(0, min(count, STEPS))
            sums, state = np.zeros_like(x), s0
            for step in reversed(range(steps)) if backwards else range(steps):
                sums[step] = state + x[step]
                state = -sums[step]
            last, results = library.run(s0, x, np.asarray(count))
            np.testing.assert_array_equal(last, state)
            np.testing.assert_array_equal(results, sums)


def test_an_observer_sees_every_step(tmp_path: Path) -> None:
    path = write_library(running_sums(16, False), tmp_path).path
    seen: list[tuple[int, int]] = []
    s0, x = np.zeros(16, np.int32), np.ones((STEPS, 16), np.int32)
    with Library(path, "running") as library:

        def observer(step: int, iterations: Sequence[int]) -> None:
            seen.append((step, iterations[0]))
            if step == 1:
                state = library.tensor("next")
                assert (state == (-1 if iterations[0] % 2 == 0 else 0)).all()

        library.run_observed(observer, s0, x)
        assert seen == [*((step, k) for k in range(STEPS) for step in (0, 1)), (-1, STEPS)]

        def failing(step: int, iterations: Sequence[int]) -> None:
            raise KeyError(step)

        with pytest.raises(KeyError, match="0"):
            library.run_observed(failing, s0, x)


def doubling(steps: int | None) -> Program:
    """``s = s + s`` while ``go`` and then while it is less than 100, at most ``n`` times; around
    it, a loop of three steps that begins again with the result and counts its steps."""
    inner = CallLoop(
        "inner", 0, 2, steps,
        (Move(Moving.START, "s", "t"), Move(Moving.COPY, "twice", "t"),
         Move(Moving.FINISH, "t", "ended")),
        limit="n", condition="go", again="again", parent=0,
    )  # fmt: skip
    outer = CallLoop(
        "outer", 0, 3, 3,
        (Move(Moving.START, "x", "s"), Move(Moving.SWAP, "next", "s"),
         Move(Moving.FINISH, "s", "y")),
        number="step",
    )  # fmt: skip
    return Program(
        "doubling",
        (
            Buffer("x", "int32", 8, Role.INPUT, (8,)),
            Buffer("n", "int64", 1, Role.INPUT, ()),
            Buffer("go", "uint8", 1, Role.INPUT, ()),
            Buffer("y", "int32", 8, Role.OUTPUT, (8,)),
            *workspace("step", size=1, dtype="int64"),
            *workspace("again", size=1, dtype="uint8"),
            *workspace("s", "t", "twice", "ended", "next", size=8),
        ),
        kernels(),  # type: ignore[arg-type]
        (),
        (Call("add", ("t", "t", "twice")), Call("less", ("twice", "again")),
         Call("negate", ("ended", "next"))),
        loops=(outer, inner),
    )  # fmt: skip


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("limit, go", [(2, 1), (100, 1), (0, 1), (-5, 1), (3, 0)])
def test_a_loop_inside_a_loop_ends_by_its_condition(
    steps: int | None, limit: int, go: int, tmp_path: Path
) -> None:
    x = np.arange(1, 9, dtype=np.int32)
    state = x
    for _ in range(3):
        count, goes_on = 0, bool(go)
        while goes_on and count < limit and (steps is None or count < steps):
            state = state + state
            count, goes_on = count + 1, bool(state[0] < 100)
        state = -state
    path = write_library(doubling(steps), tmp_path).path
    with Library(path, "doubling") as library:
        (y,) = library.run(x, np.asarray(limit, np.int64), np.asarray(go, np.uint8))
    np.testing.assert_array_equal(y, state)


def test_what_lives_throughout_a_loop_shares_no_memory() -> None:
    """Otherwise a step would overwrite what the next one reads."""
    program = doubling(4)
    places = workspace_of(program).places
    buffers = program.by_name
    kept = ["s", "next", "t", "twice", "ended"]
    ranges = sorted((places[name], places[name] + buffers[name].bytes) for name in kept)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))


def test_the_interface_observes_from_c(tmp_path: Path) -> None:
    path = write_library(running_sums(16, False), tmp_path).path
    counted = 0

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))
    def observer(context: int, step: int, iterations: object) -> None:
        nonlocal counted
        counted += 1

    with Library(path, "running") as library:
        arrays: list[NDArray[np.int32]] = [
            np.zeros(n, np.int32) for n in (16, 16 * STEPS, 16, 16 * STEPS)
        ]
        pointers = [(ctypes.c_void_p * 2)(*(a.ctypes.data for a in pair))
                    for pair in (arrays[:2], arrays[2:])]  # fmt: skip
        function = library._library.running_run_observed
        assert function(library._handle, *pointers, None, observer, None) == 0
        nothing = type(observer)()
        assert function(library._handle, *pointers, None, nothing, None) == 1
    assert counted == 2 * STEPS + 1

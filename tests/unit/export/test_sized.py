"""Libraries whose sizes are ranges, of kernels that are written in C: how runs are divided."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.export import library as written
from cpembed.export import loader
from cpembed.export.library import Contents, compiler
from cpembed.export.loader import Library, LibraryError, aligned
from cpembed.export.program import Buffer, Call, Program, Role
from cpembed.export.sized import (
    FillerBuffer,
    ProgramInstance,
    SizedProgram,
    SizedTensor,
    Symbol,
)
from cpembed.graph.family import Extent, Filling
from tests.unit.export.handwritten import ADD, compiled

write_library = partial(written.write_library, options=("-O0",))

try:
    compiler()
except BackendUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

# target[k] = the size of the mask, then the bytes of the mask as numbers, then 100 * the quotient.
SPELL = """
KERNEL(spell) {
  UNUSED;
  int32_t *target = TENSOR(2)->data;
  int64_t size = TENSOR(0)->shape[0];
  for (int64_t k = 0; k < size; k++) target[k] = ((uint8_t *)TENSOR(0)->data)[k];
  target[size] = (int32_t)(100 * *(float *)TENSOR(1)->data + 0.5f);
  return 0;
}
"""
ROWS, COLUMNS = Extent("rows", 1, 0), Extent("columns", 2, 1)
"""A row has 2 * columns + 1 elements."""


def summed(rows: int, columns: int, cost: float, least: tuple[int, int]) -> ProgramInstance:
    """``y = x + x``, and a constant that all instances share."""
    size = rows * (2 * columns + 1)
    shape = (rows, 2 * columns + 1)
    buffers = (
        Buffer("x", "int32", size, Role.INPUT, shape),
        Buffer("mask", "uint8", 2 * columns + 1, Role.INPUT, (2 * columns + 1,)),
        Buffer("quotient", "float32", 1, Role.INPUT, ()),
        Buffer("y", "int32", size, Role.OUTPUT, shape),
        Buffer("spelt", "int32", 2 * columns + 2, Role.WORKSPACE),
        Buffer("copy", "int32", size, Role.WORKSPACE),
        Buffer(f"zero {size}", "int32", size, Role.CONSTANT, data=np.zeros(size, np.int32)),
    )
    program = Program(
        "sized",
        buffers,
        {"add": compiled(ADD, "add"), "spell": compiled(SPELL, "spell")},
        (),
        (
            Call("spell", ("mask", "quotient", "spelt"), "spell"),
            Call("add", ("x", f"zero {size}", "copy"), "copy"),
            Call("add", ("x", "copy", "y"), "double"),
        ),
    )
    fillers = (
        FillerBuffer("mask", COLUMNS, 2 * columns + 1, Filling.MASK),
        FillerBuffer("quotient", COLUMNS, 2 * columns + 1, Filling.QUOTIENT),
    )
    return ProgramInstance(
        program, (rows, columns), least, (20, columns), cost, ("x",), ("y",), fillers
    )


def sized(split: str | None = "rows") -> SizedProgram:
    instances = (
        summed(1, 4, 1.5, (1, 1)), summed(4, 4, 4.0, (1, 1)), summed(1, 12, 3.0, (1, 1)),
        summed(8, 12, 9.0, (1, 1)),
    )  # fmt: skip
    shape = ((ROWS,), (COLUMNS,))
    return SizedProgram(
        "sized",
        (Symbol("rows", 1, 20), Symbol("columns", 1, 12)),
        split,
        (SizedTensor("x", "int32", shape),),
        (SizedTensor("y", "int32", shape),),
        instances,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sized")
    write_library(sized(), folder)
    return folder


@pytest.fixture(params=(1, 3))
def library(request: pytest.FixtureRequest, folder: Path) -> Iterator[Library]:
    with Library(folder / "libsized.so", "sized", threads=request.param) as opened:
        yield opened


def x_of(rows: int, columns: int) -> np.ndarray:
    random = np.random.default_rng(rows + 100 * columns)
    return random.integers(-999, 999, (rows, 2 * columns + 1), dtype=np.int32)


def test_any_sizes_in_the_ranges(library: Library) -> None:
    sizes = [(r, c) for r in range(1, 21) for c in range(1, 13)]
    for rows, columns in np.random.default_rng(0).permutation(sizes):
        x = x_of(rows, columns)
        (y,) = library.run(x)
        assert np.array_equal(y, 2 * x), (rows, columns)


def test_shapes_are_resolved_again_when_others_took_their_place(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_MOST_RESOLVED", 2)
    library._resolved.clear()
    for rows, columns in [(3, 4), (5, 6), (3, 4), (7, 2), (5, 6), (3, 4)] * 2:
        x = x_of(rows, columns)
        assert np.array_equal(library.run(x)[0], 2 * x)
    assert len(library._resolved) <= 2


def test_memory_may_begin_anywhere_and_nothing_else_is_written(library: Library) -> None:
    for shift in (0, 4, 64):
        x = x_of(13, 7)
        room = np.full(x.size + 64, 77, np.int32)
        start = -(room.ctypes.data // 4) % 16 + shift // 4
        out = room[start : start + x.size].reshape(x.shape)
        library.run(x, out=[out])
        assert np.array_equal(out, 2 * x)
        assert (room[:start] == 77).all()
        assert (room[start + x.size :] == 77).all()


def test_the_cheapest_instances_are_run(library: Library) -> None:
    """13 rows of 3 columns: 4 + 4 + 4 + 1 at 13.5, which 4 * 4 would be at 16."""
    _, ns = library.run_timed(x_of(13, 3))
    taken = {name.partition(":")[0] for name, t in zip(library.steps, ns, strict=True) if t}
    assert taken == {"rows=1,columns=4", "rows=4,columns=4"}
    # 7 rows of 5 columns: one of 8 at 9, not seven of one at 21.
    _, ns = library.run_timed(x_of(7, 5))
    taken = {name.partition(":")[0] for name, t in zip(library.steps, ns, strict=True) if t}
    assert taken == {"rows=8,columns=12"}


def test_masks_and_quotients_follow_the_sizes(library: Library) -> None:
    for columns, size in ((1, 9), (4, 9), (5, 25), (12, 25)):
        # Later steps reuse the memory: only the first one of each instance is run.
        for number, name in enumerate(library.steps):
            if name.endswith("spell"):
                library.run_steps(number, number + 1, x_of(2, columns))
        spelt = library.tensor("spelt")
        extent = 2 * columns + 1
        assert spelt[:-1].tolist() == [1] * extent + [0] * (size - extent)
        assert spelt[-1] == round(100 * size / extent)


@pytest.mark.parametrize("shape, said", [
    ((21, 9), "x is [21, 9]: rows is 21, the library takes 1 to 20"),
    ((3, 27), "columns is 13, the library takes 1 to 12"),
    ((3, 8), "x is int32 [3, 8], the library takes int32 [3, 9]"),
    ((3,), "the library takes int32"),
])  # fmt: skip
def test_other_sizes_are_errors(library: Library, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(LibraryError) as caught:
        library.run(np.zeros(shape, np.int32))
    assert said in str(caught.value)


def test_the_interface_of_c_checks_sizes_too(library: Library) -> None:
    numbers = np.array([21, 3], np.int64)
    status = library._library.sized_resize(library._handle, numbers.ctypes.data)
    assert status == 9
    assert library._library.sized_kernel_message(library._handle).decode() == (
        "rows is 21, the library takes 1 to 20"
    )
    # The sizes stay those before.
    assert library._library.sized_resize(library._handle, None) == 1


def test_ranges_are_stated(library: Library, folder: Path) -> None:
    assert library.ranges == {"rows": (1, 20), "columns": (1, 12)}
    assert library.inputs[0].shape == (20, 25)
    assert library.inputs[0].at((3, 2)).shape == (3, 5)
    about = json.loads((folder / "sized.json").read_text())
    assert about["ranges"]["symbols"] == {"rows": [1, 20], "columns": [1, 12]}
    assert about["ranges"]["split"] == "rows"
    assert about["inputs"][0]["sizes"] == "[rows, 2*columns+1]"
    header = (folder / "sized.h").read_text()
    assert "inputs[0]: x, int32 [rows, 2*columns+1]" in header
    assert "sizes[1]: columns, 1 to 12" in header


def test_the_loader_of_the_folder_takes_any_sizes(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("sized_loader", folder / "sized.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with module.Library() as library:
        x = x_of(5, 5)
        assert np.array_equal(library.run(x)[0], 2 * x)


def test_a_workspace_of_the_caller_is_large_enough_for_all(library: Library) -> None:
    workspace = aligned((library.workspace_bytes,), np.uint8)
    x = np.ascontiguousarray(x_of(20, 12))
    y = np.zeros_like(x)
    pointers = [np.array([array.ctypes.data], np.uintp) for array in (x, y)]
    library._library.sized_resize(library._handle, np.array([20, 12], np.int64).ctypes.data)
    status = library._library.sized_run(
        library._handle, *(p.ctypes.data for p in pointers), workspace.ctypes.data
    )
    assert status == 0
    assert np.array_equal(y, 2 * x)


def test_equal_constants_are_there_once(tmp_path: Path) -> None:
    """Names of constants say what they hold, so that those of one name are one."""
    program = sized()
    twice = replace(program, instances=(*program.instances, summed(4, 4, 5.0, (1, 1))))
    sizes: list[int] = []
    for number, made in enumerate((program, twice)):
        write_library(made, tmp_path / str(number), Contents(example=False))
        about = json.loads((tmp_path / str(number) / "sized.json").read_text())
        sizes.append(about["constant_bytes"])
    assert sizes[0] == sizes[1] == sum(-(-4 * n // 64) * 64 for n in (9, 36, 25, 200))


def test_rows_that_cannot_be_divided_are_a_bug() -> None:
    with pytest.raises(InvariantError, match="not divided into rows"):
        sized(split="columns")

"""Elements that C has no type for: conversions against ml_dtypes, and emulated products."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from cpembed.driver.named import hardware_spec
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.parser import parse_computation
from cpembed.targets.scratchpad.boxes import BoxProduct, lower
from cpembed.targets.scratchpad.emit import C_TYPES, NARROWED, WIDENED, elements_text
from cpembed.targets.scratchpad.executor import compile_text, program, save, shape_of
from cpembed.targets.scratchpad.machine import scratchpad_machine
from cpembed.targets.scratchpad.schedule import Plan
from cpembed.targets.scratchpad.space import ScratchpadSpace
from tests.unit.targets.scratchpad.executor.running import needs_compiler
from tests.unit.targets.scratchpad.machines import described, without_mesh

pytestmark = needs_compiler

EXTENTS = {"m": 20, "n": 34, "k": 18}


def converted(function: str, source: str, target: str, values: np.ndarray) -> np.ndarray:
    """What a function of elements.h makes of many values, executed by one PE."""
    count = len(values)
    sizes = count * values.itemsize, count * np.dtype(target).itemsize
    text = f"""
#include <stdint.h>
{elements_text()}
#include "scratchpad.h"
void kernel(const struct arguments *a) {{
  {source} *from = scratchpad(0, 0);
  {C_TYPES[target]} *to = scratchpad(0, {1 << 18});
  dma_reply reply = 0;
  dma_get(from, a->operand[0], {sizes[0]}, {sizes[0]}, 0, &reply);
  dma_wait(&reply, 1);
  for (long i = 0; i < {count}; i++) to[i] = {function};
  dma_put(a->operand[1], to, {sizes[1]}, {sizes[1]}, 0, &reply);
  dma_wait(&reply, 1);
}}
"""
    results = np.zeros(count, target)
    machine = scratchpad_machine(hardware_spec("gemmini_16x16"))
    shape = shape_of(machine)
    shape = type(shape)(**{**vars(shape), "memories": (1 << 20,)})
    compile_text(text).run(shape, [values, results])
    return results


@pytest.mark.parametrize("dtype", WIDENED)
def test_every_element_widens_exactly(dtype: str) -> None:
    own = numpy_dtype(dtype)
    bits = np.arange(1 << (8 * own.itemsize), dtype=f"uint{8 * own.itemsize}")
    result = converted(f"value_of_{dtype}(from[i])", dtype, "float32", bits)
    expected = bits.view(own).astype(np.float32)
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("dtype", NARROWED)
def test_floats_narrow_to_the_nearest_even(dtype: str) -> None:
    own = numpy_dtype(dtype)
    elements = np.arange(1 << 16, dtype=np.uint16).view(own).astype(np.float32)
    finite = np.sort(elements[np.isfinite(elements)])
    middles = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    with np.errstate(over="ignore"):
        near = [np.nextafter(middles.astype(np.float32), np.float32(s)) for s in (-1e38, 1e38)]
    special = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 65519.996, 65520, -0.0], np.float32)
    values = np.concatenate([middles.astype(np.float32), *near, special])
    for part in np.array_split(values, 8):
        result = converted(f"{dtype}_of(from[i]).bits", "float", "uint16", part)
        with np.errstate(over="ignore"):
            expected = part.astype(own)
        same = (result == expected.view(np.uint16)) | np.isnan(expected.astype(np.float32))
        assert same.all(), part[~same][:3]
        assert np.isnan(result.view(own)[np.isnan(part)].astype(np.float32)).all()


def unit(folder: Path, factors: tuple[str, str], sums: str, *, sized: bool) -> HardwareSpec:
    text = (
        without_mesh(described())
        if sized
        else Path(hardware_spec("gemmini_16x16").path).read_text()
    )
    first, second = factors
    text = text.replace('"int8"', f'"{first}"', 1).replace('"int8"', f'"{second}"')
    text = text.replace('dtype = "int32"', f'dtype = "{sums}"')
    # Rows of factors of different sizes cannot be counted together.
    text = text.replace("rows = 16_384", "capacity_bytes = 262_144")
    path = folder / f"{first}_{second}_{sums}_{sized}.toml"
    path.write_text(text)
    return load_hardware_spec(path)


def first_product(spec: HardwareSpec, extents: dict[str, int]) -> BoxProduct:
    dtypes = {name: types[0] for name, types in spec.instruction.dtypes.items()}
    # The primitive of any size stores columns.
    sums = "C[n,m]" if spec.instruction.axes[0].largest else "C[m,n]"
    layer = parse_computation(f"{sums} += A[m,k] * B[k,n]", extents, dtypes=dtypes)
    machine = scratchpad_machine(spec)
    programs = [each.candidate.program for each in solve(layer, spec, top=9).embeddings]
    return next(lower(p, machine) for p in programs if p.roles == {n: n for n in "ABC"})


NAMES = ("int4", "uint4", "int8", "uint8", "int16", *WIDENED, "float32")


@pytest.mark.quick(12)
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("first, second", [*itertools.product(NAMES, repeat=2)])
def test_products_of_all_types(tmp_path: Path, first: str, second: str, *, sized: bool) -> None:
    """Small integers are exact in all types, so that every order of summation gives the same."""
    is_float = any("float" in name for name in (first, second))
    spec = unit(tmp_path, (first, second), "float32" if is_float else "int32", sized=sized)
    product = first_product(spec, EXTENTS)
    rng = np.random.default_rng(1)
    operands = product.workload.inputs
    lowest = {name: 0 if name.startswith("u") else -8 for name in (first, second)}
    inputs = {
        operand.name: rng.integers(lowest[operand.dtype], 8, operand.shape).astype(
            numpy_dtype(operand.dtype)
        )
        for operand in operands
    }
    artifact = program(Plan(product, ScratchpadSpace(product).best().schedule))
    expected = inputs["A"].astype(np.int64) @ inputs["B"].astype(np.int64)
    expected = expected.T if sized else expected
    for order in (1, 2):
        np.testing.assert_array_equal(artifact.run(inputs, order).astype(np.int64), expected)
    assert artifact.counters is not None
    for number, box in enumerate(artifact.plan.form.boxes[:2]):
        # What is packed ahead has room for full boxes.
        if not box.tiled:
            array = inputs[box.operand.name]
            share = 2 if "int4" in box.operand.dtype else 1
            assert artifact.counters.moved[number, "get"].bytes * share == array.nbytes
    assert artifact.counters.peaks[0] <= artifact.plan.used[0]


@pytest.mark.parametrize("sums", NARROWED)
def test_narrow_sums_are_rounded_after_each_addition(tmp_path: Path, sums: str) -> None:
    spec = unit(tmp_path, ("float32", "float32"), sums, sized=False)
    product = first_product(spec, {"m": 4, "n": 4, "k": 40})
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((4, 40), (40, 4)))
    plan = Plan(product, ScratchpadSpace(product).best().schedule)
    result = program(plan).run({"A": a, "B": b}, 1)
    expected = np.zeros((4, 4), numpy_dtype(sums))
    for step in range(40):
        products = a[:, step, None] * b[step]
        expected = (expected.astype(np.float32) + products).astype(numpy_dtype(sums))
    np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize(
    "factors, sums, sized, problem",
    [
        (
            ("float8_e5m2",) * 2,
            "float8_e5m2",
            False,
            "C is of float8_e5m2, in which no sums are",
        ),
        (("float16",) * 2, "float16", True, "C is of float16, in which no sums are kept: give the"),
        (("int8", "int8"), "int4", False, "C is of int4, in which no sums are kept"),
    ],
)
def test_sums_in_types_that_keep_none_are_one_line(
    tmp_path: Path, factors: tuple[str, str], sums: str, problem: str, *, sized: bool
) -> None:
    product = first_product(unit(tmp_path, factors, sums, sized=sized), EXTENTS)
    with pytest.raises(LoweringError, match=problem):
        program(Plan(product, ScratchpadSpace(product).best().schedule))


def test_elements_that_share_a_byte_are_moved_in_whole_bytes(tmp_path: Path) -> None:
    spec = unit(tmp_path, ("int4", "int4"), "int32", sized=False)
    with pytest.raises(LoweringError, match="2 elements of A share a byte, which a transfer moves"):
        first_product(spec, {"m": 20, "n": 34, "k": 17})
    product = first_product(spec, EXTENTS)
    artifact = program(Plan(product, ScratchpadSpace(product).best().schedule))
    with pytest.raises(LoweringError, match="emulated with a byte each, and such a text is not"):
        save(artifact, tmp_path / "saved")

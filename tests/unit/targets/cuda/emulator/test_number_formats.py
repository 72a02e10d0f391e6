"""Conversions of float, float16 and bfloat16, with the processor's instructions and without."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.targets.cuda.emulator.executor import COMPILER, NATIVE, Launch, compile_text
from tests.unit.targets.cuda.emulator.running import needs_compiler

pytestmark = needs_compiler

SOURCE = """
#include "number_formats.h"
extern "C" void {name}(const {source}* from, {to}* to, long n) {{
  for (long i = 0; i < n; i++) to[i] = executor::{name}(from[i]);
}}
"""
FUNCTIONS = {
    "float16_to_float": ("uint16_t", "float"),
    "float_to_float16": ("float", "uint16_t"),
    "bfloat16_to_float": ("uint16_t", "float"),
    "float_to_bfloat16": ("float", "uint16_t"),
}
SMALL = {"16": np.float16, "b16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions, compiled for any processor."""
    folder = tmp_path_factory.mktemp("formats")
    text = "".join(
        SOURCE.format(name=name, source=source, to=to) for name, (source, to) in FUNCTIONS.items()
    )
    (folder / "formats.cpp").write_text(text)
    words = [*COMPILER.command(), "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{NATIVE}"]
    library = Path(folder / "formats.so")
    subprocess.run([*words, folder / "formats.cpp", "-o", library], check=True)
    return ctypes.CDLL(str(library))


KERNELS = """
extern "C" __global__ void float16_to_float(const half* from, float* to, long n) {
  for (long i = threadIdx.x; i < n; i += 32) to[i] = __half2float(from[i]);
}
extern "C" __global__ void float_to_float16(const float* from, half* to, long n) {
  for (long i = threadIdx.x; i < n; i += 32) to[i] = __float2half_rn(from[i]);
}
extern "C" __global__ void bfloat16_to_float(const nv_bfloat16* from, float* to, long n) {
  for (long i = threadIdx.x; i < n; i += 32) to[i] = __bfloat162float(from[i]);
}
extern "C" __global__ void float_to_bfloat16(const float* from, nv_bfloat16* to, long n) {
  for (long i = threadIdx.x; i < n; i += 32) to[i] = __float2bfloat16(from[i]);
}
"""


def converted(where: Any, name: str, given: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """By the portable functions, or by a kernel of this processor where there are none."""
    found = np.zeros(given.shape, dtype)
    if where is None:
        one = Launch(name, (1, 1, 1), (32, 1, 1))
        compile_text(KERNELS).run(one, [given, found, given.size])
    else:
        pointers = (a.ctypes.data_as(ctypes.c_void_p) for a in (given, found))
        getattr(where, name)(*pointers, ctypes.c_long(given.size))
    return found


@cache
def floats() -> NDArray[np.float32]:
    """Any bits, all halfway points of float16 and their neighbours, and the ends of ranges."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 30000, np.uint32).view(np.float32)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    near = [np.nextafter(middles, np.float32(to)) for to in (-np.inf, np.inf)]
    ends = np.array([0, 65504, 65519.996, 65520, 65536, 2**-25, 2**-24, 2**-14, np.inf], np.float32)
    positive = np.concatenate([middles, *near, ends])
    return np.concatenate([bits, positive, -positive])


@pytest.mark.parametrize("how", ["portable", "kernel"])
@pytest.mark.parametrize("kind", SMALL)
def test_all_small_floats_become_the_floats_that_they_are(
    kind: str, how: str, portable: Any
) -> None:
    given = np.arange(1 << 16, dtype=np.uint16)
    name = "bfloat16_to_float" if kind == "b16" else "float16_to_float"
    found = converted(portable if how == "portable" else None, name, given, np.float32)
    np.testing.assert_array_equal(found, given.view(SMALL[kind]).astype(np.float32))


@pytest.mark.parametrize("how", ["portable", "kernel"])
@pytest.mark.parametrize("kind", SMALL)
def test_floats_become_the_nearest_small_floats(kind: str, how: str, portable: Any) -> None:
    given = floats()
    name = "float_to_bfloat16" if kind == "b16" else "float_to_float16"
    found = converted(portable if how == "portable" else None, name, given, np.uint16)
    with np.errstate(all="ignore"):
        expected = given.astype(SMALL[kind])
    numbers = ~np.isnan(given)
    np.testing.assert_array_equal(found[numbers], expected.view(np.uint16)[numbers])
    assert np.isnan(found.view(SMALL[kind])[~numbers].astype(np.float32)).all()


ARITHMETIC = """
extern "C" __global__ void arithmetic(const half* a, const half* b, half* out) {
  int i = blockIdx.x * 256 + threadIdx.x, n = gridDim.x * 256;
  out[i] = a[i] + b[i];
  out[i + n] = a[i] - b[i];
  out[i + 2 * n] = a[i] * b[i];
  out[i + 3 * n] = a[i] / b[i];
  out[i + 4 * n] = __hfma(a[i], b[i], a[i]);
}
"""


def test_arithmetic_of_float16_is_rounded_once() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 16, 4096).astype(np.uint16).view(np.float16) for _ in range(2))
    found = np.zeros((5, 4096), np.float16)
    compile_text(ARITHMETIC).run(Launch("arithmetic", (16, 1, 1), (256, 1, 1)), [a, b, found])
    with np.errstate(all="ignore"):
        x, y = a.astype(np.longdouble), b.astype(np.longdouble)
        exact = np.stack([x + y, x - y, x * y, x / y, x * y + x]).astype(np.float16)
    np.testing.assert_array_equal(found, exact)

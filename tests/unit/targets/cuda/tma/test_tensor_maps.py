"""Tensor maps: what the driver documents as legal, their encodings, and their C++ text."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpembed.errors import LoweringError
from cpembed.targets.cuda.tma.tensor_maps import (
    ENCODERS_TEXT,
    Im2colBox,
    TensorMap,
    TiledBox,
)

TILED = TensorMap(
    dtype="float16",
    global_dims=(192, 100, 7),
    global_strides=(384, 38_400),
    element_strides=(1, 1, 2),
    box=TiledBox((64, 32, 4)),
    swizzle=128,
)
IM2COL = TensorMap(
    dtype="int8",
    global_dims=(128, 14, 12, 3),
    global_strides=(128, 1792, 21_504),
    element_strides=(1, 2, 1, 1),
    box=Im2colBox(lower=(-1, -2), upper=(-1, 0), channels=128, pixels=96),
    swizzle=128,
)


class Encoding(ctypes.LittleEndianStructure):
    """The executor's struct, as a C compiler lays it out."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("strides", ctypes.c_uint64 * 4),
        ("dims", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5),
        ("element_strides", ctypes.c_uint8 * 5),
        ("mode", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("rank", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("element_bytes", ctypes.c_uint8),
        ("lower", ctypes.c_int16 * 3),
        ("upper", ctypes.c_int16 * 3),
        ("channels", ctypes.c_uint16),
        ("pixels", ctypes.c_uint16),
        ("fill", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8 * 23),
        ("mark", ctypes.c_char * 8),
    )


def decoded(tensor_map: TensorMap, address: int) -> Encoding:
    data = tensor_map.encode(address)
    assert len(data) == 128 == ctypes.sizeof(Encoding)
    return Encoding.from_buffer_copy(data)


def test_a_tiled_map_is_encoded_as_the_executor_reads_it() -> None:
    fields = decoded(TILED, 0x7F0000001230)
    assert fields.address == 0x7F0000001230
    assert list(fields.strides) == [384, 38_400, 0, 0]
    assert list(fields.dims) == [192, 100, 7, 1, 1]
    assert list(fields.box) == [64, 32, 4, 1, 1]
    assert list(fields.element_strides) == [1, 1, 2, 1, 1]
    assert (fields.mode, fields.dtype, fields.rank) == (0, 6, 3)
    assert (fields.swizzle, fields.element_bytes, fields.fill) == (3, 2, 0)
    assert fields.mark == b"CUTENMAP"


def test_an_im2col_map_is_encoded_as_the_executor_reads_it() -> None:
    fields = decoded(IM2COL, 16)
    assert (fields.mode, fields.dtype, fields.rank, fields.element_bytes) == (1, 0, 4, 1)
    assert (list(fields.lower), list(fields.upper)) == ([-1, -2, 0], [-1, 0, 0])
    assert (fields.channels, fields.pixels) == (128, 96)


def test_bytes_of_a_transaction_count_what_lies_in_shared_memory() -> None:
    assert TILED.image_shape == (2, 32, 64)
    assert TILED.transaction_bytes == 2 * 32 * 64 * 2
    assert IM2COL.transaction_bytes == 96 * 128
    # 14 - 1 - 1 + 1 = 13 columns, every second; 12 - 1 + 2 rows.
    assert IM2COL.bases == (7, 14)


@pytest.mark.parametrize(
    "tensor_map, changes, message",
    [
        (TILED, {"dtype": "float64"}, "element type float64"),
        (TILED, {"global_dims": (192, 100)}, "2 dimensions have 1 strides"),
        (TILED, {"global_dims": (192, 0, 7)}, "from 1 to 2"),
        (TILED, {"global_dims": (192, 2**31 + 1, 7)}, "from 1 to 2"),
        (TILED, {"global_strides": (384, 38_408)}, "multiples of 16"),
        (TILED, {"global_strides": (384, 2**40)}, "multiples of 16"),
        (TILED, {"element_strides": (1, 1, 9)}, "from 1 to 8"),
        (TILED, {"element_strides": (1, 1, 3)}, "multiples of element strides"),
        (TILED, {"swizzle": 16}, "swizzle of 16"),
        (TILED, {"swizzle": 64}, "as long as the swizzle"),
        (TILED, {"box": TiledBox((64, 257, 4))}, "extents from 1 to 256"),
        (TILED, {"box": TiledBox((4, 32, 4)), "swizzle": 0}, "rows of 8 bytes"),
        (TILED, {"box": TiledBox((64, 32))}, "a box of 2 dimensions"),
        (IM2COL, {"box": replace(IM2COL.box, pixels=1025)}, "at most 256 and 1024"),
        (IM2COL, {"box": replace(IM2COL.box, channels=257), "swizzle": 0}, "rows of 257"),
        (IM2COL, {"box": replace(IM2COL.box, lower=(-129, 0))}, "from -128 to 127"),
        (IM2COL, {"box": replace(IM2COL.box, upper=(-20, 0))}, "enclose no pixel"),
        (IM2COL, {"box": replace(IM2COL.box, upper=(0,))}, "have 2 numbers"),
    ],
)
def test_what_the_driver_rejects_is_no_tensor_map(
    tensor_map: TensorMap, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoweringError, match=message):
        replace(tensor_map, **changes)


def test_im2col_needs_an_image_and_at_most_three_spatial_dimensions() -> None:
    with pytest.raises(LoweringError, match="2 dimensions in im2col mode"):
        TensorMap(
            dtype="float16",
            global_dims=(64, 8),
            global_strides=(128,),
            element_strides=(1, 1),
            box=Im2colBox(lower=(), upper=(), channels=64, pixels=8),
        )
    with pytest.raises(LoweringError, match="no multiple of 16"):
        TILED.encode(8)


@pytest.mark.parametrize("tensor_map", [TILED, IM2COL])
def test_documents_hold_the_map(tensor_map: TensorMap) -> None:
    document = tensor_map.to_json()
    assert json.loads(json.dumps(document)) == document
    for name in ("dtype", "global_dims", "element_strides", "swizzle"):
        value = getattr(tensor_map, name)
        assert document[name] == (list(value) if isinstance(value, tuple) else value)


STUB = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void print(const char* name, const cuuint64_t* values, int count) {
  printf("%s", name);
  for (int n = 0; n < count; n++) printf(" %llu", (unsigned long long)values[n]);
  printf("\n");
}
static void print(const char* name, const cuuint32_t* values, int count) {
  printf("%s", name);
  for (int n = 0; n < count; n++) printf(" %u", values[n]);
  printf("\n");
}
static CUresult tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
    const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  memset(map, 255, sizeof(CUtensorMap));
  printf("tiled %d %u %d %d %d %d\n", type, rank, address == (void*)4096, interleave,
      swizzle, fill);
  print("dims", dims, rank);
  print("strides", strides, rank - 1);
  print("box", box, rank);
  print("steps", steps, rank);
  return CUDA_SUCCESS;
}
static CUresult im2col(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void*,
    const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
    cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps, CUtensorMapInterleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  printf("im2col %d %u %d\n", type, rank, swizzle);
  printf("corners %d %d %d %d %u %u\n", lower[0], lower[1], upper[0], upper[1], channels, pixels);
  return (CUresult)(dims[0] == 128 && strides[1] == 1792 && steps[1] == 2 ? 1 : 0);
}
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
    unsigned int, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *result = cudaDriverEntryPointSuccess;
  *function = strcmp(symbol, "cuTensorMapEncodeTiled") ? (void*)im2col : (void*)tiled;
  return cudaSuccess;
}
extern "C" cudaError_t cudaDriverGetVersion(int* version) {
  *version = atoi(getenv("DRIVER_VERSION"));
  return cudaSuccess;
}
"""


def cuda_headers() -> Path:
    """Folder of ``cuda.h``; skips the test where nothing has it."""
    nvcc = shutil.which("nvcc")
    try:
        import nvidia

        folders = [folder for p in nvidia.__path__ for folder in Path(p).glob("*/include")]
    except ImportError:
        folders = []
    if nvcc is not None:
        folders.append(Path(nvcc).resolve().parent.parent / "include")
    for folder in folders:
        if (folder / "cuda.h").exists() and (folder / "cuda_runtime.h").exists():
            return folder
    pytest.skip("cuda.h is not there: pip install nvidia-cuda-nvcc nvidia-cuda-runtime")


def encoder(folder: Path, statements: Sequence[str]) -> Path:
    """A program of the statements, on a driver that prints its arguments."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not there")
    source, program = folder / "encode.cpp", folder / "encode"
    source.write_text(STUB + ENCODERS_TEXT + "int main() {\n" + "\n".join(statements) + "\n}\n")
    options = ["-std=c++17", f"-I{cuda_headers()}", "-o", str(program)]
    subprocess.run([compiler, *options, str(source)], check=True)
    return program


@pytest.mark.parametrize("rows, version", [(500, 13010), (500, 13020), (512, 13010)])
def test_maps_of_small_arrays_are_corrected_as_cutlass_does(
    rows: int, version: int, tmp_path: Path
) -> None:
    """Below 131,072 bytes, of drivers up to CUDA 13.1, bit 21 of the second word is cleared.

    CUTLASS 4.8, cute/atom/copy_traits_sm90_tma.hpp, make_tma_copy_desc.
    """
    tensor_map = TensorMap(
        dtype="float16",
        global_dims=(128, rows),
        global_strides=(256,),
        element_strides=(1, 1),
        box=TiledBox((64, 64)),
        swizzle=128,
    )
    printed = 'printf("%llx\\n", ((unsigned long long*)&map)[1]);'
    program = encoder(tmp_path, [tensor_map.c_text("map", "(char*)4096"), printed])
    environment = {"DRIVER_VERSION": str(version)}
    run = subprocess.run([program], capture_output=True, text=True, check=True, env=environment)
    small = rows * 256 < 131072
    assert tensor_map.to_json()["small"] is small
    cleared = small and version <= 13010
    assert run.stdout.splitlines()[-1] == ("ffffffffffdfffff" if cleared else "f" * 16)


def test_the_text_calls_the_driver_with_the_fields_of_the_map(tmp_path: Path) -> None:
    texts = (TILED.c_text("A_map", "(char*)4096"), IM2COL.c_text("B_map", "nullptr"))
    program = encoder(tmp_path, texts)
    environment = {"DRIVER_VERSION": "13000"}
    run = subprocess.run([program], capture_output=True, text=True, check=False, env=environment)
    assert run.stdout.splitlines() == [
        "tiled 6 3 1 0 3 0",
        "dims 192 100 7",
        "strides 384 38400",
        "box 64 32 4",
        "steps 1 1 2",
        "im2col 0 4 3",
        "corners -1 -2 -1 0 128 96",
    ]
    # The stub rejects the second map.
    assert run.returncode == 1
    assert "the driver rejects the tensor map B_map: error 1" in run.stderr

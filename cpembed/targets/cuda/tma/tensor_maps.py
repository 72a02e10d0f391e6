"""Tensor maps of the Tensor Memory Accelerator (TMA): fields, limits, and their encodings.

A tensor map describes an array in global memory and the part of it that one bulk copy moves: a box
of at most five dimensions, or, in im2col mode, a number of pixels of an image and of their
channels. The fields are those of ``cuTensorMapEncodeTiled`` and ``cuTensorMapEncodeIm2col``
(CUDA driver API, Tensor Map Object Management), whose arrays begin with the innermost dimension, as
all arrays of dimensions here do. What the 128 bytes of an encoded map mean is private to the
driver, so the executor has an encoding of its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.errors import LoweringError
from cpembed.ir.dtypes import size_bytes

MAX_RANK = 5
MAX_BOX = 256
"""Maximum extent of a box in a dimension, and maximum number of channels of a pixel."""
MAX_PIXELS = 1024
"""Maximum number of pixels that a copy in im2col mode moves."""
MAX_ELEMENT_STRIDE = 8
MAX_DIMENSION = 2**31
MAX_STRIDE_BYTES = 2**40
ALIGNMENT = 16
"""Bytes that addresses, strides, and rows of a box are multiples of."""

SWIZZLES = (0, 32, 64, 128)
"""Spans in bytes within which chunks of 16 bytes can be permuted; 0 permutes none."""

_DATA_TYPES = {
    "uint8": ("UINT8", 0),
    "int8": ("UINT8", 0),
    "float8_e4m3fn": ("UINT8", 0),
    "float8_e5m2": ("UINT8", 0),
    "uint16": ("UINT16", 1),
    "int32": ("INT32", 3),
    "float16": ("FLOAT16", 6),
    "float32": ("FLOAT32", 7),
    "bfloat16": ("BFLOAT16", 9),
}
"""Suffix and number of the driver's enumerator ``CU_TENSOR_MAP_DATA_TYPE_…`` by element type."""

_IM2COL_BITS = {3: 16, 4: 8, 5: 5}
"""Number of bits of a signed corner of an im2col box, and of an unsigned offset of a filter, by the
rank of the map."""

SMALL_BYTES = 128 * 1024
"""Number of bytes below which a map needs a correction after some drivers encoded it."""

_ENCODING = struct.Struct("<Q4Q5I5H5B5B3h3hHHB23x8s")
_MARK = b"CUTENMAP"
"""Last eight bytes of the executor's encoding: a map of other origin is a fault."""


@dataclass(frozen=True)
class TiledBox:
    """Number of elements that a copy traverses along each dimension, innermost first."""

    extents: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Im2colBox:
    """Pixels that a copy in im2col mode moves, and their channels.

    The dimensions of the map are channels, then width, height and depth of an image, then the
    images. The corners bound the base of a filter: along a dimension of extent ``n`` it lies within
    ``lower`` and ``n - 1 + upper``. A copy begins with the base that its coordinates name and goes
    on with the following bases, width first, from image to image.

    Attributes
    ----------
    lower, upper : tuple of int
        Corners, width first.
    channels, pixels : int
        Number of channels of a pixel, and number of pixels.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """An array in global memory, and what a bulk copy moves of it into shared memory.

    Elements outside of the array are zeros in shared memory. Raises :class:`LoweringError` if the
    driver does not encode such a map.

    Attributes
    ----------
    dtype : str
    global_dims : tuple of int
        Number of elements along each dimension, innermost first.
    global_strides : tuple of int
        Bytes between neighbours along each dimension but the innermost.
    element_strides : tuple of int
        Distance of the elements that are traversed along each dimension.
    box : TiledBox or Im2colBox
        Elements of a copy.
    swizzle : int
        Span in bytes within which chunks of 16 bytes are permuted in shared memory; 0: none are.
    """

    dtype: str
    global_dims: tuple[int, ...]
    global_strides: tuple[int, ...]
    element_strides: tuple[int, ...]
    box: TiledBox | Im2colBox
    swizzle: int = 0

    def __post_init__(self) -> None:
        for complaint in self._complaints():
            raise LoweringError(f"no tensor map: {complaint}")

    @property
    def rank(self) -> int:
        return len(self.global_dims)

    @property
    def element_bytes(self) -> int:
        return size_bytes(self.dtype)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Extents of a copy in shared memory, outermost first; rows are contiguous."""
        if isinstance(self.box, Im2colBox):
            return self.box.pixels, self.box.channels
        # The element stride of the innermost dimension is ignored (driver API).
        strides = (1, *self.element_strides[1:])
        extents = zip(self.box.extents, strides, strict=True)
        return tuple(reversed([extent // stride for extent, stride in extents]))

    @property
    def transaction_bytes(self) -> int:
        """Bytes that a copy writes, and that its mbarrier counts, zeros included."""
        return math.prod(self.image_shape) * self.element_bytes

    def _complaints(self) -> list[str]:
        """Return what the driver would reject, in the order of its documentation."""
        if self.dtype not in _DATA_TYPES:
            return [f"element type {self.dtype}: use one of {', '.join(_DATA_TYPES)}"]
        rank = self.rank
        if not 1 <= rank <= MAX_RANK:
            return [f"{rank} dimensions: at most {MAX_RANK}"]
        lengths = (len(self.global_strides) + 1, len(self.element_strides))
        if lengths != (rank, rank):
            return [f"{rank} dimensions have {rank - 1} strides and {rank} element strides"]
        complaints: list[str] = []
        if any(not 1 <= size <= MAX_DIMENSION for size in self.global_dims):
            complaints.append(f"dimensions {self.global_dims}: from 1 to 2^31")
        if any(s % ALIGNMENT or not 0 < s < MAX_STRIDE_BYTES for s in self.global_strides):
            complaints.append(f"strides of {self.global_strides} bytes: positive multiples of 16")
        if any(not 1 <= stride <= MAX_ELEMENT_STRIDE for stride in self.element_strides):
            complaints.append(f"element strides {self.element_strides}: from 1 to 8")
        if self.swizzle not in SWIZZLES:
            complaints.append(f"swizzle of {self.swizzle} bytes: one of {SWIZZLES}")
        if isinstance(self.box, TiledBox):
            complaints += self._box_complaints(self.box)
        else:
            complaints += self._im2col_complaints(self.box)
        return complaints

    def _box_complaints(self, box: TiledBox) -> list[str]:
        if len(box.extents) != self.rank:
            return [f"a box of {len(box.extents)} dimensions: the map has {self.rank}"]
        complaints = self._row_complaints(box.extents[0])
        if any(not 1 <= extent <= MAX_BOX for extent in box.extents):
            complaints.append(f"a box of {box.extents}: extents from 1 to {MAX_BOX}")
        # The documentation rounds the number of elements up, encoded maps hold it rounded down.
        pairs = zip(box.extents[1:], self.element_strides[1:], strict=True)
        if any(extent % stride for extent, stride in pairs):
            complaints.append(f"a box of {box.extents}: extents are multiples of element strides")
        return complaints

    def _im2col_complaints(self, box: Im2colBox) -> list[str]:
        if self.rank not in _IM2COL_BITS:
            return [f"{self.rank} dimensions in im2col mode: from 3 to 5"]
        if (len(box.lower), len(box.upper)) != (self.rank - 2, self.rank - 2):
            return [f"corners of {self.rank} dimensions have {self.rank - 2} numbers"]
        complaints = self._row_complaints(box.channels)
        limit = 2 ** (_IM2COL_BITS[self.rank] - 1)
        if any(not -limit <= corner < limit for corner in (*box.lower, *box.upper)):
            complaints.append(f"corners {box.lower} and {box.upper}: from {-limit} to {limit - 1}")
        if min(self.bases) < 1:
            complaints.append(f"corners {box.lower} and {box.upper} enclose no pixel")
        if not 1 <= box.channels <= MAX_BOX or not 1 <= box.pixels <= MAX_PIXELS:
            complaints.append(
                f"{box.channels} channels of {box.pixels} pixels: "
                f"at most {MAX_BOX} and {MAX_PIXELS}"
            )
        return complaints

    def _row_complaints(self, elements: int) -> list[str]:
        row = elements * self.element_bytes
        if row % ALIGNMENT:
            return [f"rows of {row} bytes: multiples of {ALIGNMENT}"]
        # Shorter rows are legal, but where they lie in shared memory is not documented.
        if self.swizzle and row != self.swizzle:
            return [f"rows of {row} bytes: as long as the swizzle of {self.swizzle}"]
        return []

    @property
    def is_small(self) -> bool:
        """True if the array ends less than 128 KiB behind its beginning."""
        steps = (self.element_bytes, *self.global_strides)
        last = sum((n - 1) * step for n, step in zip(self.global_dims, steps, strict=True))
        return last + self.element_bytes < SMALL_BYTES

    @property
    def bases(self) -> tuple[int, ...]:
        """Number of bases of a filter along each dimension of an image, width first.

        Raises :class:`LoweringError` unless the map is in im2col mode.
        """
        if not isinstance(self.box, Im2colBox):
            raise LoweringError("a tiled tensor map has no bases of a filter")
        sizes, strides = self.global_dims[1:-1], self.element_strides[1:-1]
        corners = zip(self.box.lower, self.box.upper, strict=True)
        return tuple(
            (size - 1 + upper - lower) // stride + 1
            for size, stride, (lower, upper) in zip(sizes, strides, corners, strict=True)
        )

    @property
    def max_offset(self) -> int:
        """Maximum offset of a filter along each dimension, in im2col mode."""
        return 2 ** _IM2COL_BITS[self.rank] - 1

    def encode(self, address: int) -> bytes:
        """Return the executor's encoding, 128 bytes; ``native/tensor_map.h`` has the struct.

        Raises :class:`LoweringError` if the address is no multiple of 16.
        """
        if address % ALIGNMENT:
            raise LoweringError(f"a tensor map's address {address:#x} is no multiple of 16")
        tiled = isinstance(self.box, TiledBox)
        extents = self.box.extents if isinstance(self.box, TiledBox) else ()
        im2col = self.box if isinstance(self.box, Im2colBox) else Im2colBox(**_NO_PIXELS)
        return _ENCODING.pack(
            address,
            *_padded(self.global_strides, MAX_RANK - 1, 0),
            *_padded(self.global_dims, MAX_RANK, 1),
            *_padded(extents, MAX_RANK, 1),
            *_padded(self.element_strides, MAX_RANK, 1),
            *(0 if tiled else 1, _DATA_TYPES[self.dtype][1], self.rank),
            *(SWIZZLES.index(self.swizzle), self.element_bytes),
            *_padded(im2col.lower, MAX_RANK - 2, 0),
            *_padded(im2col.upper, MAX_RANK - 2, 0),
            *(im2col.channels, im2col.pixels, 0, _MARK),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the members of the map for manifests of saved kernels."""
        document: dict[str, Any] = {
            "dtype": self.dtype,
            "rank": self.rank,
            "global_dims": list(self.global_dims),
            "global_strides_bytes": list(self.global_strides),
            "element_strides": list(self.element_strides),
            "interleave": "none",
            "swizzle": self.swizzle,
            "out_of_bounds": "zero",
            "small": self.is_small,
        }
        if isinstance(self.box, TiledBox):
            return document | {"box": list(self.box.extents)}
        return document | {
            "im2col": {
                "lower": list(self.box.lower),
                "upper": list(self.box.upper),
                "channels": self.box.channels,
                "pixels": self.box.pixels,
            }
        }

    def c_text(self, name: str, address: str) -> str:
        """Return C++ statements that declare the map ``name`` and encode it with the driver.

        ``address`` is a C++ expression of the pointer to the array. They belong into a function
        behind :data:`ENCODERS_TEXT`.
        """
        tiled = isinstance(self.box, TiledBox)
        lines = [
            f"CUtensorMap {name};",
            "{",
            f"  const cuuint64_t dims[] = {_braces(self.global_dims)};",
            # Rank 1 has no strides, and C++ no empty arrays.
            f"  const cuuint64_t strides[] = {_braces(self.global_strides or (0,))};",
            f"  const cuuint32_t steps[] = {_braces(self.element_strides)};",
        ]
        if isinstance(self.box, TiledBox):
            lines.append(f"  const cuuint32_t box[] = {_braces(self.box.extents)};")
            part = "box"
        else:
            lines.append(f"  const int lower[] = {_braces(self.box.lower)};")
            lines.append(f"  const int upper[] = {_braces(self.box.upper)};")
            part = f"lower, upper, {self.box.channels}, {self.box.pixels}"
        swizzle = f"{self.swizzle}B" if self.swizzle else "NONE"
        dtype, encoder = _DATA_TYPES[self.dtype][0], "tiled" if tiled else "im2col"
        lines += [
            f"  cpembed_encoded(cpembed_encoder_{encoder}()(",
            f"      &{name}, CU_TENSOR_MAP_DATA_TYPE_{dtype}, {self.rank}, (void*)({address}),",
            f"      dims, strides, {part}, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,",
            f"      CU_TENSOR_MAP_SWIZZLE_{swizzle}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,",
            f'      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE), "{name}");',
        ]
        if self.is_small:
            lines.append(f"  cpembed_correct_small(&{name});")
        lines.append("}")
        return "\n".join(lines)


_NO_PIXELS: dict[str, Any] = {"lower": (), "upper": (), "channels": 0, "pixels": 0}

ENCODERS_TEXT = """\
// The driver's functions are looked up by the runtime, so that nothing links with libcuda.
static void* cpembed_driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr) {
    fprintf(stderr, "the driver has no %s: tensor maps need CUDA 12 and a GPU of sm_90\\n", name);
    exit(1);
  }
  return function;
}
static decltype(&cuTensorMapEncodeTiled) cpembed_encoder_tiled() {
  return (decltype(&cuTensorMapEncodeTiled))cpembed_driver_function("cuTensorMapEncodeTiled");
}
static decltype(&cuTensorMapEncodeIm2col) cpembed_encoder_im2col() {
  return (decltype(&cuTensorMapEncodeIm2col))cpembed_driver_function("cuTensorMapEncodeIm2col");
}
// Drivers up to CUDA 13.1 mark maps of small arrays wrongly, so that copies may fault: the bit that
// CUTLASS clears (cute/atom/copy_traits_sm90_tma.hpp and copy_traits_sm90_im2col.hpp).
static void cpembed_correct_small(CUtensorMap* map) {
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version <= 13010)
    ((cuuint64_t*)map)[1] &= ~(cuuint64_t(1) << 21);
}
static void cpembed_encoded(CUresult result, const char* name) {
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "the driver rejects the tensor map %s: error %d\\n", name, (int)result);
    exit(1);
  }
}
"""
"""C++ functions that :meth:`TensorMap.c_text` calls; needs ``<cuda.h>``, ``<cuda_runtime.h>``,
``<stdio.h>`` and ``<stdlib.h>``."""


def _padded(numbers: Sequence[int], length: int, fill: int) -> tuple[int, ...]:
    return (*numbers, *([fill] * (length - len(numbers))))


def _braces(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"

"""Tensor Core instructions that kernels are generated for, and the lanes that hold their matrices.

An instruction is executed by one warp, or by a warp group of four. The PTX ISA documents the
registers of ``mma.sync`` and ``wgmma``, and ``fragments.toml`` holds these maps. It does not
document those of WMMA, whose fragments are accessed by WMMA's own loads and stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

import msgspec

from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.instruction import (
    HardwareSpec,
    Instruction,
    InstructionAxis,
    TileDimension,
    read_tile,
)
from cpembed.hw.schema import read_table, spec_error
from cpembed.ir.dtypes import size_bytes

LANES = 32
"""Number of threads of a warp."""

WARP_GROUP = 4 * LANES
"""Number of threads of a warp group."""

WARP_ROWS = 16
"""Number of rows of a tile of sums that a warp holds."""

GROUPS, GROUP_LANES = 8, 4
"""Number of groups of a warp, and of lanes of a group, in the PTX ISA's maps of fragments."""


SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
    "int32": "s32",
}
"""PTX's names of element types."""

FRAGMENTS_PATH = Path(__file__).with_name("fragments.toml")

Kind = Literal["mma", "wmma", "wgmma"]


@dataclass(frozen=True, kw_only=True)
class TensorCoreInstruction:
    """``C[m, n] += A[m, k] * B[k, n]``, executed by the lanes of a warp or of a warp group.

    ``a``, ``b`` and ``c`` are element types. In shared memory A consists of rows of ``k`` elements,
    B of columns of ``k``, C of rows of ``n``.
    """

    kind: Kind
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str

    @property
    def architecture(self) -> int:
        """Compute capability from which GPUs have the instruction: 80 is that of sm_80."""
        if self.kind == "wgmma":
            return 90
        return 89 if self.a.startswith("float8_") else 80

    @property
    def shape(self) -> str:
        """PTX's name of the extents, ``m16n8k16`` for instance."""
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def name(self) -> str:
        """Kind, shape, and the element types of C, A and B."""
        types = "_".join(SHORT[dtype] for dtype in (self.c, self.a, self.b))
        return f"{self.kind}_{self.shape}_{types}"

    @property
    def threads(self) -> int:
        """Number of threads that execute the instruction together."""
        return WARP_GROUP if self.kind == "wgmma" else LANES

    @property
    def registers(self) -> tuple[int, int, int]:
        """Number of 32-bit registers of a lane for A, B and C."""
        extents = (self.m * self.k, self.n * self.k, self.m * self.n)
        # Registers of 32 bits: several short elements share one.
        first, second, sums = (
            count * size_bytes(dtype) // 4 // self.threads
            for count, dtype in zip(extents, (self.a, self.b, self.c), strict=True)
        )
        if self.kind == "wmma" and self.a == "float16":
            # PTX ISA, wmma: eight registers of f16x2 in every shape, some elements twice.
            return 8, 8, sums
        return first, second, sums

    @property
    def mma_function(self) -> str:
        """Name of the device function ``(c, a, b)`` that executes the instruction."""
        if self.kind == "mma":
            return f"cpembed_{self.name}"
        return f"cpembed_wmma_mma_{self.name.removeprefix('wmma_')}"

    @property
    def load_functions(self) -> tuple[str, str]:
        """Names of WMMA's device functions that load rows of A and columns of B.

        Their arguments are ``(registers, shared, leading dimension in elements)``.
        """
        self._require_wmma("loads")
        return (
            f"cpembed_wmma_load_a_{self.shape}_{SHORT[self.a]}",
            f"cpembed_wmma_load_b_{self.shape}_{SHORT[self.b]}",
        )

    @property
    def store_function(self) -> str:
        """Name of WMMA's device function that stores rows of C.

        Its arguments are ``(shared, registers, leading dimension in elements)``.
        """
        self._require_wmma("stores")
        return f"cpembed_wmma_store_{self.shape}_{SHORT[self.c]}"

    @property
    def fragments(self) -> tuple[str, str, str]:
        """Names in ``fragments.toml`` of the matrices A, B and C."""
        if self.kind == "wmma":
            raise InvariantError(f"{self.name}: which lane holds which element is not specified")
        # Each warp of a group holds 16 rows, in the fragments of mma.sync (PTX ISA, "Register
        # Fragments for wgmma.mma_async.m64nNk16" and "... k32").
        shape = self.shape if self.kind == "mma" else f"m16n8k{self.k}"
        return f"{shape}.a", f"{shape}.b", f"{shape}.c"

    def _require_wmma(self, functions: str) -> None:
        if self.kind != "wmma":
            raise InvariantError(
                f"{self.name} has no {functions} of its own: fragments are plain arrays"
            )


_FLOATS = (
    ("float16", "float16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "float32"),
)
_SAME_BYTES = tuple((dtype, dtype, "int32") for dtype in ("int8", "uint8"))
_BYTES = tuple((a, b, "int32") for a in ("int8", "uint8") for b in ("int8", "uint8"))

_BYTE_FLOATS = tuple(
    (a, b, c)
    for c in ("float32", "float16")
    for a in ("float8_e4m3fn", "float8_e5m2")
    for b in ("float8_e4m3fn", "float8_e5m2")
)

_FORMS: tuple[tuple[Kind, tuple[int, int, int], tuple[tuple[str, str, str], ...]], ...] = (
    ("mma", (16, 8, 16), _FLOATS),
    # Bytes are twice as deep, with any mixture of signs; WMMA takes equal types only.
    ("mma", (16, 8, 32), _BYTES),
    ("mma", (16, 8, 32), _BYTE_FLOATS),
    ("wmma", (16, 16, 16), (*_FLOATS, *_SAME_BYTES)),
    ("wmma", (32, 8, 16), (*_FLOATS, *_SAME_BYTES)),
    ("wmma", (8, 32, 16), (*_FLOATS, *_SAME_BYTES)),
)

INSTRUCTIONS = tuple(
    TensorCoreInstruction(kind=kind, m=m, n=n, k=k, a=a, b=b, c=c)
    for kind, (m, n, k), types in _FORMS
    for a, b, c in types
)
"""Instructions of sm_80 and later (PTX ISA, shapes and types of ``mma.sync`` and ``wmma``).

Those of 8-bit floats need sm_89 or later (:attr:`TensorCoreInstruction.architecture`).
"""

WARP_GROUP_INSTRUCTIONS = tuple(
    TensorCoreInstruction(kind="wgmma", m=64, n=8, k=k, a=a, b=b, c=c)
    for k, types in ((16, _FLOATS), (32, _BYTES), (32, _BYTE_FLOATS))
    for a, b, c in types
)
"""Instructions of sm_90a, of the fewest columns (PTX ISA, ``wgmma.mma_async``)."""


def instruction_of(
    spec: HardwareSpec,
    dtypes: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
) -> TensorCoreInstruction:
    """Return the instruction that a specification describes, by its extents and element types.

    Parameters
    ----------
    spec
        Specification of the target.
    dtypes
        Element types by operand; default: the first choice of the specification.
    roles
        Operand of the workload by operand of the instruction, if ``dtypes`` is by operand of the
        workload; default: ``dtypes`` is by operand of the instruction.

    Raises
    ------
    LoweringError
        If no kernels are generated for the instruction.
    """
    instruction, inputs = spec.instruction, spec.instruction.computation.inputs
    if len(inputs) != 2:
        raise LoweringError(
            f"{spec.name}: a Tensor Core multiplies two operands, not {len(inputs)}"
        )
    names = [operand.name for operand in (*inputs, instruction.computation.output)]
    # Without types of a workload, those that the specification lists first.
    choice = instruction.dtype_choices[0]
    if dtypes is not None:
        choice = {name: dtypes[(roles or {}).get(name, name)] for name in choice}
    shape = _matrix_shape(instruction)
    a, b, c = (choice[name] for name in names)
    for supported in (*INSTRUCTIONS, *WARP_GROUP_INSTRUCTIONS):
        if (supported.m, supported.n, supported.k) == shape and (
            (supported.a, supported.b, supported.c) == (a, b, c)
        ):
            return supported
    described = "no matrix product" if shape is None else "x".join(map(str, shape))
    raise LoweringError(
        f"{spec.name}: no Tensor Core kernels for {described} of {a} x {b} -> {c}; there are those "
        "of the specifications mma_*, wmma_* and wgmma_*"
    )


def _matrix_shape(instruction: Instruction) -> tuple[int, int, int] | None:
    """Return rows, columns and depth; None if the instruction is not a matrix product."""
    computation = instruction.computation
    first, second, output = (
        {name for index in computation.access(operand.name).index for name in index.iterators}
        for operand in (*computation.inputs, computation.output)
    )
    # The rows are indexed by the first factor and the result, and so on: names do not matter.
    axes = (first & output, second & output, first & second)
    if any(len(names) != 1 for names in axes) or len(instruction.axes) != 3:
        return None
    m, n, k = (instruction.extents[next(iter(names))] for names in axes)
    return m, n, k


class FragmentTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[fragments.NAME]``: number of elements of a lane, and digits of their coordinates."""

    elements: int
    row: list[str]
    column: list[str]


class FragmentsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``fragments.toml``."""

    fragments: dict[str, FragmentTable]


@dataclass(frozen=True)
class Fragment:
    """A matrix distributed over a warp.

    A lane holds ``elements`` of it, in the order of registers and of the bytes in them; ``row`` and
    ``column`` are the digits of its coordinates, outermost first.
    """

    name: str
    elements: int
    row: tuple[TileDimension, ...]
    column: tuple[TileDimension, ...]

    @property
    def shape(self) -> tuple[int, int]:
        extents = _extents(self.elements)
        rows, columns = (
            math.prod(digit.size(extents[digit.axis]) for digit in digits)
            for digits in (self.row, self.column)
        )
        return rows, columns

    def position(self, lane: int, element: int) -> tuple[int, int]:
        """Return row and column of an element that a lane holds."""
        if not (0 <= lane < LANES and 0 <= element < self.elements):
            raise InvariantError(f"{self.name}: no element {element} in lane {lane}")
        values = {
            "groupID": lane // GROUP_LANES,
            "threadID_in_group": lane % GROUP_LANES,
            "i": element,
        }
        return self._coordinate(self.row, values), self._coordinate(self.column, values)

    def _coordinate(self, digits: Sequence[TileDimension], values: Mapping[str, int]) -> int:
        coordinate, extents = 0, _extents(self.elements)
        for digit in digits:
            size = digit.size(extents[digit.axis])
            coordinate = coordinate * size + values[digit.axis] // digit.divisor % size
        return coordinate


def _extents(elements: int) -> dict[str, int]:
    return {"groupID": GROUPS, "threadID_in_group": GROUP_LANES, "i": elements}


@cache
def fragments() -> Mapping[str, Fragment]:
    """Return the fragments of ``fragments.toml`` by name."""
    return read_fragments(FRAGMENTS_PATH)


def read_fragments(path: Path) -> Mapping[str, Fragment]:
    """Read fragments by name.

    Raises :class:`~cpembed.errors.SpecError` unless each element of a matrix is in exactly one
    place of one lane.
    """
    table = read_table(path, FragmentsTable)
    return {name: _fragment(path, name, entry) for name, entry in table.fragments.items()}


def _fragment(path: Path, name: str, table: FragmentTable) -> Fragment:
    axes = {axis: InstructionAxis(axis, n, n) for axis, n in _extents(table.elements).items()}
    error = partial(spec_error, str(path), ("fragments", name))
    digits = read_tile([*table.row, *table.column], tuple(axes), axes, error)
    # Read together: each element's digits have to be used exactly once, in rows or in columns.
    rows = len(table.row)
    return Fragment(name, table.elements, digits[:rows], digits[rows:])

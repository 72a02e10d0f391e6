"""The instructions of Tensor Cores that kernels are generated for, of one warp each.

``mma.sync`` documents which lane holds which element (:mod:`cpembed.targets.cuda.fragments`), WMMA
does not: its fragments come and go by its own loads and stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.ir.dtypes import size_bytes

LANES = 32
"""Threads of a warp."""

SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "int8": "s8",
    "uint8": "u8",
    "int32": "s32",
}
"""PTX's names of element types."""

Kind = Literal["mma", "wmma"]


@dataclass(frozen=True)
class TensorCoreInstruction:
    """``C[m, n] += A[m, k] * B[k, n]`` by the 32 lanes of a warp.

    ``a``, ``b`` and ``c`` are element types. A lies in rows of ``k`` elements, B in columns of
    ``k``, C in rows of ``n``.
    """

    kind: Kind
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str

    @property
    def shape(self) -> str:
        """As PTX writes it, ``m16n8k16`` for instance."""
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def name(self) -> str:
        """Kind, shape, and the element types of C, A and B."""
        types = "_".join(SHORT[dtype] for dtype in (self.c, self.a, self.b))
        return f"{self.kind}_{self.shape}_{types}"

    @property
    def registers(self) -> tuple[int, int, int]:
        """Of 32 bits in a lane, for A, B and C."""
        extents = (self.m * self.k, self.n * self.k, self.m * self.n)
        first, second, sums = (
            count * size_bytes(dtype) // 4 // LANES
            for count, dtype in zip(extents, (self.a, self.b, self.c), strict=True)
        )
        if self.kind == "wmma" and self.a == "float16":
            # PTX ISA, wmma: eight registers of f16x2 in every shape, some elements twice.
            return 8, 8, sums
        return first, second, sums

    @property
    def mma_function(self) -> str:
        """The device function ``(c, a, b)`` that executes it."""
        if self.kind == "mma":
            return f"cpembed_{self.name}"
        return f"cpembed_wmma_mma_{self.name.removeprefix('wmma_')}"

    @property
    def load_functions(self) -> tuple[str, str]:
        """WMMA's device functions ``(registers, shared, distance in elements)``, for rows of A and
        columns of B."""
        self._require_wmma("loads")
        return (
            f"cpembed_wmma_load_a_{self.shape}_{SHORT[self.a]}",
            f"cpembed_wmma_load_b_{self.shape}_{SHORT[self.b]}",
        )

    @property
    def store_function(self) -> str:
        """WMMA's device function ``(shared, registers, distance in elements)``, for rows of C."""
        self._require_wmma("stores")
        return f"cpembed_wmma_store_{self.shape}_{SHORT[self.c]}"

    @property
    def fragments(self) -> tuple[str, str, str]:
        """Names in :mod:`cpembed.targets.cuda.fragments` of what lanes hold of A, B and C."""
        if self.kind != "mma":
            raise InvariantError(f"{self.name}: which lane holds which element is not specified")
        return f"{self.shape}.a", f"{self.shape}.b", f"{self.shape}.c"

    def _require_wmma(self, what: str) -> None:
        if self.kind != "wmma":
            raise InvariantError(
                f"{self.name} has no {what} of its own: fragments are plain arrays"
            )


_FLOATS = (
    ("float16", "float16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "float32"),
)

_SAME_BYTES = tuple((dtype, dtype, "int32") for dtype in ("int8", "uint8"))

_BYTES = tuple((one, other, "int32") for one in ("int8", "uint8") for other in ("int8", "uint8"))

_FORMS: tuple[tuple[Kind, tuple[int, int, int], tuple[tuple[str, str, str], ...]], ...] = (
    ("mma", (16, 8, 16), _FLOATS),
    ("mma", (16, 8, 32), _BYTES),
    ("wmma", (16, 16, 16), (*_FLOATS, *_SAME_BYTES)),
    ("wmma", (32, 8, 16), (*_FLOATS, *_SAME_BYTES)),
    ("wmma", (8, 32, 16), (*_FLOATS, *_SAME_BYTES)),
)

INSTRUCTIONS = tuple(
    TensorCoreInstruction(kind, *shape, *types) for kind, shape, each in _FORMS for types in each
)
"""Of sm_80 and later: PTX ISA, the tables of shapes and types of ``mma.sync`` and ``wmma``."""


def instruction_of(
    spec: HardwareSpec,
    dtypes: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
) -> TensorCoreInstruction:
    """The instruction that a specification describes, by extents and element types.

    ``dtypes`` chooses among the element types of the specification, by operand of the instruction;
    where ``roles`` maps these to operands of a workload, by operand of the workload. Without it
    they are the first ones.

    Raises :class:`LoweringError` where no kernels are generated for it.
    """
    instruction = spec.instruction
    first, second = _factors(spec)
    output = instruction.computation.output.name
    chosen = instruction.dtype_choices[0]
    if dtypes is not None:
        chosen = {name: dtypes[(roles or {}).get(name, name)] for name in chosen}
    shape = _shape(instruction, first, second, output)
    types = (chosen[first], chosen[second], chosen[output])
    for found in INSTRUCTIONS:
        if (found.m, found.n, found.k) == shape and (found.a, found.b, found.c) == types:
            return found
    described = "no matrix product" if shape is None else "x".join(map(str, shape))
    raise LoweringError(
        f"{spec.name}: no Tensor Core kernels for {described} of "
        f"{' x '.join(types[:2])} -> {types[2]}; there are those of the specifications mma_* and "
        "wmma_*"
    )


def _factors(spec: HardwareSpec) -> tuple[str, str]:
    inputs = spec.instruction.computation.inputs
    if len(inputs) != 2:
        raise LoweringError(
            f"{spec.name}: a Tensor Core multiplies two operands, not {len(inputs)}"
        )
    return inputs[0].name, inputs[1].name


def _shape(
    instruction: Instruction, first: str, second: str, output: str
) -> tuple[int, int, int] | None:
    """Rows, columns and depth; None for what is no matrix product."""
    computation = instruction.computation
    one, other, result = (
        {name for index in computation.access(operand).index for name in index.iterators}
        for operand in (first, second, output)
    )
    axes = (one & result, other & result, one & other)
    if any(len(names) != 1 for names in axes) or len(instruction.axes) != 3:
        return None
    m, n, k = (instruction.extents[next(iter(names))] for names in axes)
    return m, n, k

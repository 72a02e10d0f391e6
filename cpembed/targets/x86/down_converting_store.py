"""Stores that convert 32-bit sums: to bytes or bfloat16, several vectors at a time, or rounded.

Converted one at a time, each vector of sums takes four operations and a store of a quarter of it.
Packed in pairs with saturation (VPACKSSDW, then VPACKUSWB or VPACKSSWB: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2), four vectors take four operations and, if they
are neighbours, one store. Two vectors of float32 become one of bfloat16 by VCVTNE2PS2BF16, which
flushes subnormals to zero. Floats are rounded to integers first, by VCVTPS2DQ, which makes the
smallest integer of NaNs and of values that are too large. AVX2 converts no single vector to bytes,
so there those that are no neighbours are packed too, and separated again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue
from cpembed.codegen.instruction import vector_parameter
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.plan import Script
from cpembed.codegen.values import literal
from cpembed.ir.dtypes import is_integer, saturated_range
from cpembed.ir.index import IndexExpr
from cpembed.targets.x86.features import lacking

_PACK_BYTES = {"uint8": "packuswb", "int8": "packsswb"}
"""Instruction that packs 16-bit words to an output type of bytes."""


@dataclass(frozen=True)
class StoreRegisters:
    """Registers that hold 32-bit sums, and the instructions that round and pack them.

    Parameters
    ----------
    lanes : int
        Number of sums in a register.
    rounding : str
        Intrinsic of VCVTPS2DQ.
    packing : str
        First part of the names of the intrinsics that pack.
    packing_suffix : str
        Last part of these names.
    masked : bool
        True if VCVTPS2DQ takes a mask and a rounding, and single vectors are converted to bytes by
        VPMOVSDB and VPMOVUSDB.
    """

    lanes: int
    rounding: str
    packing: str
    packing_suffix: str = ""
    masked: bool = False

    def rounded(self, value: str) -> str:
        """Return floats rounded to integers in the current direction, to the nearest even."""
        masks = [self.broadcast("T.int32(0)"), "T.int16(-1)", "T.int32(4)"] if self.masked else []
        return intrinsic_call(self.rounding, f"int32x{self.lanes}", value, *masks)

    def broadcast(self, scalar: str) -> str:
        return f"T.Broadcast({scalar}, {self.lanes})"

    def limited(self, value: str, limits: tuple[int, int]) -> str:
        """Return floats limited to a range of bytes, so that rounding them saturates no more."""
        low, high = (self.broadcast(f"T.float32({limit})") for limit in limits)
        return f"T.max(T.min({value}, {high}), {low})"

    def plus(self, value: str, constant: int) -> str:
        return f"({value} + {self.broadcast(f'T.int32({constant})')})" if constant else value

    def packed(self, instruction: str, dtype: str, first: str, second: str) -> str:
        """Return two vectors packed, within each 128 bits, to elements of half the size."""
        name = f"{self.packing}.{instruction}{self.packing_suffix}"
        return intrinsic_call(name, dtype, first, second)

    def packed_bytes(self, values: Sequence[str], dtype: str, index: int, count: int) -> str:
        """Return ``count`` of four vectors, from number ``index`` on, as one vector of bytes.

        Parameters
        ----------
        values : sequence of str
            Four vectors of integers.
        dtype : str
            Type of the bytes.
        index, count : int
        """
        lanes = self.lanes
        first, second = (
            self.packed("packssdw", f"int16x{2 * lanes}", *pair)
            for pair in (values[:2], values[2:])
        )
        packed = self.packed(_PACK_BYTES[dtype], f"int8x{4 * lanes}", first, second)
        words = f'T.reinterpret({packed}, dtype="int32x{lanes}")'
        # Packing works within 128 bits, so the 32-bit words of a vector end up four words apart.
        parts = lanes // 4
        order = [4 * part + vector for vector in range(4) for part in range(parts)]
        order = order[parts * index : parts * (index + count)]
        return f'T.reinterpret(T.Shuffle([{words}], {order}), dtype="{dtype}x{lanes * count}")'


ATTRIBUTES = ("+avx512f", "+avx512bw", "+avx512bf16")
"""Attributes for these stores; every CPU with AMX has the features."""


def intrinsic_call(name: str, dtype: str, *arguments: str) -> str:
    """Return a call of the intrinsic ``llvm.NAME``, which has no side effects."""
    number = f'T.llvm_lookup_intrinsic_id("llvm.{name}")'
    return f'T.call_llvm_pure_intrin({", ".join((number, *arguments))}, dtype="{dtype}")'


ZMM_STORES = StoreRegisters(
    16, "x86.avx512.mask.cvtps2dq.512", "x86.avx512", packing_suffix=".512", masked=True
)
YMM_STORES = StoreRegisters(8, "x86.avx.cvt.ps2dq.256", "x86.avx2")

Pack = Callable[[Sequence[str], str, int, int], str]
"""Text of ``count`` of some vectors, from number ``index`` on, as one vector of a type: of the
vectors, the type, ``index`` and ``count``."""


def vectors_per_store(nest: Nest, *, has_bf16: bool = True) -> int:
    """Return the number of vectors of sums that are converted at a time.

    ``has_bf16`` tells whether the CPU has VCVTNE2PS2BF16.
    """
    epilogue = nest.epilogue
    if epilogue is None or epilogue.is_integral or nest.sums not in ("int32", "float32"):
        return 1
    # The results of a chain are computed in loops that the compiler vectorizes.
    if epilogue.chain is not None:
        return 1
    if epilogue.dtype in _PACK_BYTES:
        return 4
    return 2 if epilogue.dtype == "bfloat16" and has_bf16 else 1


@dataclass(frozen=True, kw_only=True)
class _Vector:
    """Neighbouring sums of a task that fill a register, as positions of the first one.

    Each position is relative to that of the task's first element, in the accumulators, the output,
    the vectors of channels and the residual.
    """

    sums: int
    result: int
    channel: int = 0
    residual: int = 0


def write_narrow(
    script: Script,
    nest: Nest,
    sums: str,
    *,
    registers: StoreRegisters = ZMM_STORES,
    has_bf16: bool | None = None,
) -> bool:
    """Write the stores of a task, if its sums are rounded or several vectors fit in one store.

    Parameters
    ----------
    script : Script
        Text to write to.
    nest : Nest
        Scheduled nest.
    sums : str
        Name of the buffer with the sums.
    registers : StoreRegisters
        Registers that hold the sums; by default those of 512 bits.
    has_bf16 : bool, optional
        True if the CPU has VCVTNE2PS2BF16; by default whether this one has it. Registers of 256
        bits have none.

    Returns
    -------
    bool
        False if nothing was written, because the compiler's own conversion is as good.
    """
    epilogue, output = nest.epilogue, nest.operands[2]
    if epilogue is None or epilogue.is_integral:
        return False
    if has_bf16 is None or not registers.masked:
        has_bf16 = registers.masked and not lacking(("avx512_bf16",))
    group_size = vectors_per_store(nest, has_bf16=has_bf16)
    # Rounding is written out even for single vectors: LLVM converts some of them lane by lane.
    rounds = is_integer(epilogue.dtype) and not epilogue.in_integers(nest.sums)
    vectors = _vectors(nest, registers.lanes) if group_size > 1 or rounds else []
    are_single = all(count == 1 for _, count in _neighbours(vectors, registers.lanes))
    if epilogue.dtype in _PACK_BYTES and are_single and registers.masked:
        # Vectors with other places would have to be separated again, which costs what packing
        # saves.
        group_size, vectors = 1, vectors if rounds else []
    if not vectors:
        return False
    first_result = _first_position(nest, output)
    pack = _packing(registers, epilogue.dtype, group_size)
    value = partial(_value, registers, nest, epilogue, sums, group_size=group_size)
    for start in range(0, len(vectors), group_size):
        group = vectors[start : start + group_size]
        values = [value(vector) for vector in group]
        # The last group may be incomplete: a repeated vector fills the places that are not stored.
        values += values[-1:] * (group_size - len(values))
        for index, count in _neighbours(group, registers.lanes):
            place = f"T.Ramp({first_result + group[index].result}, 1, {registers.lanes * count})"
            script.line(
                f"{output.parameter}[{place}] = {pack(values, epilogue.dtype, index, count)}"
            )
    return True


def _vectors(nest: Nest, lanes: int) -> list[_Vector]:
    """Return a task's sums in the order of their results, as vectors of so many lanes.

    Empty if the innermost loop is not over as many neighbours in every buffer.
    """
    *outer_loops, lane = nest.spatial_inner
    accesses = {"sums": nest.accumulator_access, "result": nest.operands[2].access}
    for name, operand in (("channel", nest.channels), ("residual", nest.residual)):
        if operand is not None:
            accesses[name] = operand.access
    inner = {loop.name for loop in nest.spatial_inner}
    parts = [
        IndexExpr.sum([term for term in access.terms if inner & set(term.iterators)])
        for access in accesses.values()
    ]
    # A term of inner and outer loops together would have another value in every task.
    if lane.extent != lanes or not all(
        inner.issuperset(term.iterators) for part in parts for term in part.terms
    ):
        return []
    if any(
        [(t.coefficient, t.is_affine) for t in part.terms if lane.name in t.iterators]
        != [(1, True)]
        for part in parts
    ):
        return []
    vectors: list[_Vector] = []
    for point in itertools.product(*(range(loop.extent) for loop in outer_loops)):
        values = {
            **{loop.name: i for loop, i in zip(outer_loops, point, strict=True)},
            lane.name: 0,
        }
        positions = (int(part.evaluate(values)) for part in parts)
        vectors.append(_Vector(**dict(zip(accesses, positions, strict=True))))
    return sorted(vectors, key=lambda vector: vector.result)


def _first_position(nest: Nest, operand: KernelOperand) -> IndexExpr:
    """Return the position of a task's first element."""
    inner, access = {loop.name for loop in nest.spatial_inner}, operand.access
    return IndexExpr.sum([t for t in access.terms if not inner & set(t.iterators)], access.constant)


def _value(
    registers: StoreRegisters,
    nest: Nest,
    epilogue: Epilogue,
    sums: str,
    vector: _Vector,
    group_size: int,
) -> str:
    """Return a vector ready for packing: with bias, scale, activation, and limits if necessary.

    Packing saturates, so it needs no lower limit, and for integers no upper limit either.

    Parameters
    ----------
    registers : StoreRegisters
    nest : Nest
    epilogue : Epilogue
    sums : str
        Name of the buffer with the sums.
    vector : _Vector
    group_size : int
        Number of vectors that are converted at a time.
    """
    lanes, broadcast = registers.lanes, registers.broadcast
    value, dtype = f"{sums}[T.Ramp({vector.sums}, 1, {lanes})]", nest.sums
    channel = None if nest.channels is None else _first_position(nest, nest.channels)
    for name, symbol in ((BIAS, "+"), (SCALE, "*")):
        if name not in epilogue.vectors or channel is None:
            continue
        if name == SCALE and dtype != "float32":
            value, dtype = f'T.cast({value}, "float32x{lanes}")', "float32"
        place = f"T.Ramp({channel + vector.channel}, 1, {lanes})"
        value = f"({value} {symbol} {vector_parameter(name)}[{place}])"
    # Saturation to unsigned bytes is a ReLU already, unless a zero point or a residual follows.
    saturates = epilogue.dtype == "uint8" and not (epilogue.is_requantized or epilogue.residual)
    if epilogue.relu and not saturates:
        # Of a NaN and a number, MAXPS returns the second operand: a NaN stays one.
        value = f"T.max({broadcast(f'T.{dtype}(0)')}, {value})"
    if epilogue.dtype == "bfloat16" and dtype != "float32":
        return f'T.cast({value}, "float32x{lanes}")'
    if dtype != "float32":
        return value
    if epilogue.residual is not None:
        return _with_residual(registers, nest, epilogue, value, vector)
    if epilogue.is_requantized:
        limited = registers.limited(value, epilogue.stored_range)
        return registers.plus(registers.rounded(limited), epilogue.zero_point)
    if epilogue.dtype == "uint8" and group_size == 1:
        # VPMOVUSDB reads the sums as unsigned. So negative ones need the lower limit, and the
        # smallest integer, which VCVTPS2DQ makes of large values and NaNs, counts as the largest.
        return registers.rounded(f"T.max({broadcast('T.float32(0)')}, {value})")
    if epilogue.dtype == "bfloat16":
        return value
    # VCVTPS2DQ would make the smallest integer of what is too large.
    largest = broadcast(f"T.float32({saturated_range(epilogue.dtype)[1]})")
    return registers.rounded(f"T.min({value}, {largest})")


def _with_residual(
    registers: StoreRegisters, nest: Nest, epilogue: Epilogue, value: str, vector: _Vector
) -> str:
    """Return a vector with the residual of :class:`~cpembed.codegen.epilogue.Residual` added.

    Parameters
    ----------
    registers : StoreRegisters
    nest : Nest
    epilogue : Epilogue
    value : str
        Vector of floats.
    vector : _Vector
    """
    residual, broadcast = epilogue.residual, registers.broadcast
    assert residual is not None
    assert nest.residual is not None
    lanes = registers.lanes
    place = f"T.Ramp({_first_position(nest, nest.residual) + vector.residual}, 1, {lanes})"
    floats = f"float32x{lanes}"
    if residual.rounds:
        limited = registers.limited(value, epilogue.stored_range)
        value = f'T.cast({registers.rounded(limited)}, "{floats}")'
    addend = f'T.cast({nest.residual.parameter}[{place}], "int32x{lanes}")'
    addend = f'T.cast({registers.plus(addend, -residual.zero_point)}, "{floats}")'
    addend = f"{addend} * {broadcast(literal(residual.scale, 'float32'))}"
    total = f"T.fma({value}, {broadcast(literal(residual.own_scale, 'float32'))}, {addend})"
    limited = registers.limited(total, epilogue.residual_range)
    return registers.plus(registers.rounded(limited), residual.stored_zero_point)


def _packing(registers: StoreRegisters, dtype: str, group_size: int) -> Pack:
    """Return the function that packs a group of vectors."""
    if group_size == 1:
        return _convert_single
    return _pack_bfloat16 if dtype == "bfloat16" else registers.packed_bytes


# The two functions below return ``count`` of the given vectors of 16 sums, from number ``index``
# on, as one vector of the output type.


def _pack_bfloat16(values: Sequence[str], dtype: str, index: int, count: int) -> str:
    # The instruction's first operand becomes the upper half.
    name = "x86.avx512bf16.cvtne2ps2bf16.512"
    packed = intrinsic_call(name, "uint16x32", values[1], values[0])
    lanes = list(range(16 * index, 16 * (index + count)))
    return packed if count > 1 else f"T.Shuffle([{packed}], {lanes})"


def _convert_single(values: Sequence[str], dtype: str, index: int, count: int) -> str:
    if dtype not in _PACK_BYTES:
        return values[0]
    move = "pmovus" if dtype == "uint8" else "pmovs"
    arguments = (values[0], ZMM_STORES.broadcast("T.int8(0)"), "T.int16(-1)")
    packed = intrinsic_call(f"x86.avx512.mask.{move}.db.512", "int8x16", *arguments)
    return packed if dtype == "int8" else f'T.reinterpret({packed}, dtype="{dtype}x16")'


def _neighbours(group: Sequence[_Vector], lanes: int) -> Iterator[tuple[int, int]]:
    """Yield the index and the number (1, 2 or 4) of vectors that one store can write."""
    index = 0
    while index < len(group):
        count = 1
        while (
            index + count < len(group)
            and group[index + count].result == group[index].result + count * lanes
        ):
            count += 1
        # A power of two, because only such vectors are registers.
        count = 1 << (count.bit_length() - 1)
        yield index, count
        index += count

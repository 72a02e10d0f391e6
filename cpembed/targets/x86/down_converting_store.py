"""Stores that convert 32-bit sums: to bytes or bfloat16, several vectors at a time, or rounded.

Converted one at a time, each vector of 16 sums takes four operations and a store of 16 bytes.
Packed in pairs with saturation (VPACKSSDW, then VPACKUSWB or VPACKSSWB: Intel 64 and IA-32
Architectures Software Developer's Manual, volume 2), four vectors take four operations and, if they
are neighbours, one store. Two vectors of float32 become one of bfloat16 by VCVTNE2PS2BF16, which
flushes subnormals to zero. Floats are rounded to integers first, by VCVTPS2DQ, which makes the
smallest integer of NaNs and of values that are too large.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpembed.codegen.epilogue import (
    BIAS,
    SCALE,
    Epilogue,
    Residual,
    saturated_range,
)
from cpembed.codegen.instruction import vector_parameter
from cpembed.codegen.nest import KernelOperand, Nest
from cpembed.codegen.plan import Script
from cpembed.codegen.values import literal
from cpembed.ir.dtypes import is_integer
from cpembed.ir.index import IndexExpr
from cpembed.targets.x86.features import lacking

_LANES = 16
_PACK_BYTES = {"uint8": "packuswb", "int8": "packsswb"}
"""Instruction that packs 16-bit words to an output type of bytes."""
# Packing works within 128-bit lanes, so the 32-bit words of a vector end up four words apart.
_UNPERMUTED = [4 * lane + vector for vector in range(4) for lane in range(4)]

ATTRIBUTES = ("+avx512f", "+avx512bw", "+avx512bf16")
"""Attributes for these stores; every CPU with AMX has the features."""


def intrinsic_call(name: str, dtype: str, *arguments: str) -> str:
    """Return a call of the intrinsic ``llvm.NAME``, which has no side effects."""
    number = f'T.llvm_lookup_intrinsic_id("llvm.{name}")'
    return f'T.call_llvm_pure_intrin({", ".join((number, *arguments))}, dtype="{dtype}")'


def vectors_per_store(nest: Nest, *, has_bf16: bool = True) -> int:
    """Return the number of vectors of 16 sums that are converted at a time.

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
    """Sixteen neighbouring sums of a task, as positions of the first one.

    Each position is relative to that of the task's first element, in the accumulators, the output,
    the vectors of channels and the residual.
    """

    sums: int
    result: int
    channel: int = 0
    residual: int = 0


def write_narrow(script: Script, nest: Nest, sums: str, *, has_bf16: bool | None = None) -> bool:
    """Write the stores of a task, if its sums are rounded or several vectors fit in one store.

    Parameters
    ----------
    script : Script
        Text to write to.
    nest : Nest
        Scheduled nest.
    sums : str
        Name of the buffer with the sums.
    has_bf16 : bool, optional
        True if the CPU has VCVTNE2PS2BF16; by default whether this one has it.

    Returns
    -------
    bool
        False if nothing was written, because the compiler's own conversion is as good.
    """
    epilogue, output = nest.epilogue, nest.operands[2]
    if epilogue is None or epilogue.is_integral:
        return False
    if has_bf16 is None:
        has_bf16 = not lacking(("avx512_bf16",))
    group_size = vectors_per_store(nest, has_bf16=has_bf16)
    # Rounding is written out even for single vectors: LLVM converts some of them lane by lane.
    rounds = is_integer(epilogue.dtype) and not epilogue.in_integers(nest.sums)
    vectors = _vectors(nest) if group_size > 1 or rounds else []
    if epilogue.dtype in _PACK_BYTES and all(count == 1 for _, count in _neighbours(vectors)):
        # Vectors with other places would have to be separated again, which costs what packing
        # saves.
        group_size, vectors = 1, vectors if rounds else []
    if not vectors:
        return False
    first_result = _first_position(nest, output)
    pack = _PACK[epilogue.dtype] if group_size > 1 else _convert_single
    for start in range(0, len(vectors), group_size):
        group = vectors[start : start + group_size]
        values = [_value(nest, epilogue, sums, vector, group_size) for vector in group]
        # The last group may be incomplete: a repeated vector fills the places that are not stored.
        values += values[-1:] * (group_size - len(values))
        for index, count in _neighbours(group):
            place = f"T.Ramp({first_result + group[index].result}, 1, {_LANES * count})"
            script.line(
                f"{output.parameter}[{place}] = {pack(values, epilogue.dtype, index, count)}"
            )
    return True


def _vectors(nest: Nest) -> list[_Vector]:
    """Return a task's sums in the order of their results, as vectors.

    Empty if the innermost loop is not over 16 neighbours in every buffer.
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
    if lane.extent != _LANES or not all(
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


def _value(nest: Nest, epilogue: Epilogue, sums: str, vector: _Vector, group_size: int) -> str:
    """Return what is to be packed of a vector: bias, scale, activation, and limits if necessary.

    Packing saturates, so it needs no lower limit, and for integers no upper limit either.
    """
    value, dtype = f"{sums}[T.Ramp({vector.sums}, 1, {_LANES})]", nest.sums
    channel = None if nest.channels is None else _first_position(nest, nest.channels)
    for name, symbol in ((BIAS, "+"), (SCALE, "*")):
        if name not in epilogue.vectors or channel is None:
            continue
        if name == SCALE and dtype != "float32":
            value, dtype = f'T.cast({value}, "float32x{_LANES}")', "float32"
        place = f"T.Ramp({channel + vector.channel}, 1, {_LANES})"
        value = f"({value} {symbol} {vector_parameter(name)}[{place}])"
    # Saturation to unsigned bytes is a ReLU already, unless a zero point or a residual follows.
    saturates = epilogue.dtype == "uint8" and not (epilogue.is_requantized or epilogue.residual)
    if epilogue.relu and not saturates:
        # Of a NaN and a number, MAXPS returns the second operand: a NaN stays one.
        value = f"T.max({_broadcast(f'T.{dtype}(0)')}, {value})"
    if epilogue.dtype == "bfloat16" and dtype != "float32":
        return f'T.cast({value}, "float32x{_LANES}")'
    if dtype != "float32":
        return value
    if epilogue.residual is not None:
        return _with_residual(nest, epilogue, epilogue.residual, value, vector)
    if epilogue.is_requantized:
        return _plus(_rounded(_limited(value, epilogue.stored_range)), epilogue.zero_point)
    if epilogue.dtype == "uint8" and group_size == 1:
        # VPMOVUSDB reads the sums as unsigned. So negative ones need the lower limit, and the
        # smallest integer, which VCVTPS2DQ makes of large values and NaNs, counts as the largest.
        return _rounded(f"T.max({_broadcast('T.float32(0)')}, {value})")
    if epilogue.dtype == "bfloat16":
        return value
    # VCVTPS2DQ would make the smallest integer of what is too large.
    largest = _broadcast(f"T.float32({saturated_range(epilogue.dtype)[1]})")
    return _rounded(f"T.min({value}, {largest})")


def _with_residual(
    nest: Nest, epilogue: Epilogue, residual: Residual, value: str, vector: _Vector
) -> str:
    """Return a vector with the residual added, as :class:`Residual` defines it."""
    assert nest.residual is not None
    place = f"T.Ramp({_first_position(nest, nest.residual) + vector.residual}, 1, {_LANES})"
    floats = f"float32x{_LANES}"
    if residual.rounds:
        value = f'T.cast({_rounded(_limited(value, epilogue.stored_range))}, "{floats}")'
    addend = f'T.cast({nest.residual.parameter}[{place}], "int32x{_LANES}")'
    addend = f'T.cast({_plus(addend, -residual.zero_point)}, "{floats}")'
    addend = f"{addend} * {_broadcast(literal(residual.scale, 'float32'))}"
    total = f"T.fma({value}, {_broadcast(literal(residual.own_scale, 'float32'))}, {addend})"
    limited = _limited(total, epilogue.residual_range)
    return _plus(_rounded(limited), residual.stored_zero_point)


def _limited(value: str, limits: tuple[int, int]) -> str:
    """Return floats limited to a range of bytes, so that rounding them saturates no more."""
    low, high = (_broadcast(f"T.float32({limit})") for limit in limits)
    return f"T.max(T.min({value}, {high}), {low})"


def _plus(value: str, constant: int) -> str:
    return f"({value} + {_broadcast(f'T.int32({constant})')})" if constant else value


def _rounded(value: str) -> str:
    """Return floats rounded to integers in the current direction, to the nearest even."""
    arguments = (value, _broadcast("T.int32(0)"), "T.int16(-1)", "T.int32(4)")
    return intrinsic_call("x86.avx512.mask.cvtps2dq.512", f"int32x{_LANES}", *arguments)


def _broadcast(scalar: str) -> str:
    return f"T.Broadcast({scalar}, {_LANES})"


# The three functions below return ``count`` of the given vectors, from number ``index`` on, as
# one vector of the output type.


def _pack_bytes(values: Sequence[str], dtype: str, index: int, count: int) -> str:
    first, second = (
        intrinsic_call("x86.avx512.packssdw.512", "int16x32", *pair)
        for pair in (values[:2], values[2:])
    )
    name = f"x86.avx512.{_PACK_BYTES[dtype]}.512"
    packed = intrinsic_call(name, "int8x64", first, second)
    words = f'T.reinterpret({packed}, dtype="int32x16")'
    order = _UNPERMUTED[4 * index : 4 * (index + count)]
    return f'T.reinterpret(T.Shuffle([{words}], {order}), dtype="{dtype}x{_LANES * count}")'


def _pack_bfloat16(values: Sequence[str], dtype: str, index: int, count: int) -> str:
    # The instruction's first operand becomes the upper half.
    name = "x86.avx512bf16.cvtne2ps2bf16.512"
    packed = intrinsic_call(name, "uint16x32", values[1], values[0])
    lanes = list(range(_LANES * index, _LANES * (index + count)))
    return packed if count > 1 else f"T.Shuffle([{packed}], {lanes})"


def _convert_single(values: Sequence[str], dtype: str, index: int, count: int) -> str:
    if dtype not in _PACK_BYTES:
        return values[0]
    move = "pmovus" if dtype == "uint8" else "pmovs"
    arguments = (values[0], _broadcast("T.int8(0)"), "T.int16(-1)")
    packed = intrinsic_call(f"x86.avx512.mask.{move}.db.512", f"int8x{_LANES}", *arguments)
    return packed if dtype == "int8" else f'T.reinterpret({packed}, dtype="{dtype}x{_LANES}")'


_PACK = {"uint8": _pack_bytes, "int8": _pack_bytes, "bfloat16": _pack_bfloat16}


def _neighbours(group: Sequence[_Vector]) -> Iterator[tuple[int, int]]:
    """Yield the index and the number (1, 2 or 4) of vectors that one store can write."""
    index = 0
    while index < len(group):
        count = 1
        while (
            index + count < len(group)
            and group[index + count].result == group[index].result + count * _LANES
        ):
            count += 1
        # A power of two, because only such vectors are registers.
        count = 1 << (count.bit_length() - 1)
        yield index, count
        index += count

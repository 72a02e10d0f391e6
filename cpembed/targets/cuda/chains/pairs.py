"""Pairs of embeddings of a chain's two products, and how the operand between them gets across.

Both products are embedded by themselves, every embedding in either order of the factors. A pair can
be one kernel if both see the operand between them alike: rows of tiles of the first are rows of
tiles of the second, and what the first counts as columns the second sums over. Whether a lane's
sums are the very registers in which the second instruction expects its factor is decided by the
maps of registers (:mod:`cpembed.embedding.coupling`). Where they are not, the operand goes through
shared memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.pointwise import epilogue_of
from cpembed.cost.ranking import RankedCandidate
from cpembed.cost.search import find_best
from cpembed.embedding.commute import Pairing
from cpembed.embedding.constraint_set import load_constraint_set
from cpembed.embedding.coupling import Coupling, Mismatch, RegisterMap, couple, holds
from cpembed.embedding.cpsat import SearchLimits
from cpembed.errors import InvariantError, LoweringError
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.steps import silent
from cpembed.targets.cuda.instructions import LANES, TensorCoreInstruction, fragments
from cpembed.targets.cuda.lower import (
    TiledProduct,
    by_stride,
    in_original,
    lower,
    original_access,
)
from cpembed.targets.cuda.tma.factors import digit_values
from cpembed.transform.program import DerivedProgram, Loop, PackedOperand
from cpembed.transform.proof import require
from cpembed.workloads.chains import Pointwise, ProductChain

Via = Literal["registers", "shared memory"]
"""Place of the operand between the products."""


@dataclass(frozen=True)
class Side:
    """An embedding of one of the products.

    Attributes
    ----------
    ranked : RankedCandidate
        Embedding and proven program.
    product : TiledProduct
        The program over tiles of the instruction. Its loops are in the order of the operand between
        the products.
    swapped : bool
        True if the factors have each other's roles, so that the instruction multiplies the
        transposed matrices.
    rows, batches, summed : bytes
        Keys of the elements of the operand between the products: along its rows and batches, and
        along what the second product sums. Equal keys are equal elements in the same order.
    """

    ranked: RankedCandidate
    product: TiledProduct
    swapped: bool
    rows: bytes
    batches: bytes
    summed: bytes


@dataclass(frozen=True)
class Pair:
    """An embedding of each product, both of which see the operand between them alike.

    Attributes
    ----------
    first, second : Side
    coupling : Coupling or Mismatch
        Registers of the first's sums that are the second's factor, or why there are none.
    """

    first: Side
    second: Side
    coupling: Coupling | Mismatch

    @property
    def via(self) -> tuple[Via, ...]:
        """Places that the operand between the products may have."""
        if isinstance(self.coupling, Coupling):
            return "registers", "shared memory"
        return ("shared memory",)

    @property
    def executed(self) -> int:
        """Multiply-accumulates that both products execute, padding included."""
        return sum(s.ranked.overheads.executed_macs for s in (self.first, self.second))

    @property
    def is_swapped(self) -> bool:
        """True if one of the products multiplies transposed matrices."""
        return self.first.swapped or self.second.swapped


@dataclass(frozen=True)
class Pairs:
    """All pairs of a chain's embeddings.

    Attributes
    ----------
    chain : ProductChain
    instruction : TensorCoreInstruction
    embeddings : tuple of int
        Number of embeddings of each product.
    pairs : tuple of Pair
        Pairs that may be one kernel; those of the fewest executions come first.
    rejected : mapping of str to int
        Number of the other pairs by reason.
    """

    chain: ProductChain
    instruction: TensorCoreInstruction
    embeddings: tuple[int, int]
    pairs: tuple[Pair, ...]
    rejected: Counter[str]


CONSTRAINTS = ("in_place_padded", "fused")
"""Presets whose embeddings are paired."""


def find_pairs(chain: ProductChain, spec: HardwareSpec) -> Pairs:
    """Pair the embeddings of a chain's products.

    Parameters
    ----------
    chain : ProductChain
    spec : HardwareSpec
        Specification of the Tensor Core instruction.

    Raises
    ------
    LoweringError
        If the instruction fits one of the products in no way.
    """
    output = None
    if chain.second.output.dtype != chain.output or chain.epilogue != Pointwise():
        output = epilogue_of(chain.epilogue, chain.output)
    firsts = _sides(chain.first, chain.first.output.name, spec, None)
    seconds = _sides(chain.second, chain.middle, spec, output)
    instruction = firsts[0].product.instruction
    pairs, rejected = list[Pair](), Counter[str]()
    for first in firsts:
        for second in seconds:
            outcome = _pair(instruction, first, second)
            if isinstance(outcome, Pair):
                pairs.append(outcome)
            else:
                rejected[outcome] += 1
    pairs.sort(key=lambda pair: (pair.executed, pair.is_swapped))
    counts = (len(firsts), len(seconds))
    return Pairs(chain, instruction, counts, tuple(pairs), rejected)


def _sides(
    product: Computation, middle: str, spec: HardwareSpec, epilogue: Epilogue | None
) -> list[Side]:
    """Return the embeddings of a product in both orders of its factors, without repetitions.

    Raises :class:`LoweringError` if there is none, with the reason of the last one that has no
    kernel.
    """
    reason = f"{spec.name}: no embedding in {product}"
    sides: dict[str, Side] = {}
    for name in CONSTRAINTS:
        constraints = load_constraint_set(name).with_commuted_operands()
        pairing = Pairing(product, spec.instruction)
        best = find_best(pairing, constraints, None, SearchLimits(), silent)
        for ranked in best.ranking.candidates:
            if ranked.identifier in sides:
                continue
            try:
                tiled = lower(ranked.program, spec, epilogue, unstored=(middle,))
            except LoweringError as error:
                reason = str(error)
                continue
            sides[ranked.identifier] = _side(ranked, tiled, product, middle)
    if not sides:
        raise LoweringError(reason)
    return list(sides.values())


def _side(ranked: RankedCandidate, tiled: TiledProduct, product: Computation, middle: str) -> Side:
    """Return an embedding as a side of a chain, by the name of the operand between the products."""
    factor = ranked.program.instruction.computation.inputs[0].name
    swapped = ranked.program.roles[factor] != product.inputs[0].name
    program, instruction = tiled.program, tiled.instruction
    operand = program.operand(middle)
    layout = in_original(operand, range(len(operand.original_shape)))
    tiled = replace(
        tiled,
        batch=by_stride(tiled.batch, layout),
        rows=by_stride(tiled.rows, layout),
        columns=by_stride(tiled.columns, layout),
    )
    rows = (tiled.rows, tiled.axes[0], instruction.m)
    columns = (tiled.columns, tiled.axes[1], instruction.n)
    preserved, summed = (columns, rows) if swapped else (rows, columns)
    if middle != product.output.name:
        tiled = replace(tiled, depth=by_stride(tiled.depth, layout))
        summed = (tiled.depth, tiled.axes[2], instruction.k)
    return Side(
        ranked=ranked,
        product=tiled,
        swapped=swapped,
        rows=_coordinates(operand, program, *preserved),
        batches=_coordinates(operand, program, tiled.batch, preserved[1], 1),
        summed=_coordinates(operand, program, *summed),
    )


def prove(pair: Pair) -> None:
    """Prove the programs of a pair, and judge its coupling once more.

    Raises
    ------
    InvariantError
        If one of them is wrong.
    """
    for side in (pair.first, pair.second):
        require(side.ranked.program)
    if isinstance(pair.coupling, Coupling):
        instruction = pair.first.product.instruction
        maps = _register_maps(instruction, pair.first.swapped, pair.second.swapped)
        if not holds(pair.coupling, *maps):
            raise InvariantError("registers of a pair do not hold the elements that they should")


def _pair(instruction: TensorCoreInstruction, first: Side, second: Side) -> Pair | str:
    """Return the pair, or the reason why both products cannot be one kernel."""
    for name, reason in _DIFFERENCES.items():
        if getattr(first, name) != getattr(second, name):
            return reason
    return Pair(first, second, _coupling(instruction, first.swapped, second.swapped))


_DIFFERENCES = {
    "batches": "batches differ",
    "rows": "rows of tiles differ",
    "summed": "what is summed is in another order than the columns",
}
"""Reasons why two sides see the operand between them differently, by attribute of a side."""


@cache
def _coupling(instruction: TensorCoreInstruction, first: bool, second: bool) -> Coupling | Mismatch:
    if instruction.kind == "wmma":
        return Mismatch(f"which lane holds which element of {instruction.kind} is not specified")
    if instruction.kind == "wgmma" and second:
        return Mismatch("the second factor of wgmma is read from shared memory")
    return couple(*_register_maps(instruction, first, second))


def _register_maps(
    instruction: TensorCoreInstruction, first: bool, second: bool
) -> tuple[RegisterMap, RegisterMap]:
    """Return the registers of the sums and of the factor: which rows and summed elements."""
    a, b, c = instruction.fragments
    warps = instruction.threads // LANES
    # Of transposed products the columns of the sums are the rows between, and the other factor is
    # the operand between.
    return (
        _register_map(c, warps, transposed=first),
        _register_map(b if second else a, warps, transposed=second),
    )


def _register_map(name: str, warps: int, *, transposed: bool) -> RegisterMap:
    """Return the map of a fragment; each warp of a group has the rows after those of the last."""
    fragment = fragments()[name]
    rows = fragment.shape[0]

    def place(lane: int, element: int) -> tuple[int, int]:
        row, column = fragment.position(lane % LANES, element)
        row += lane // LANES * rows
        return (column, row) if transposed else (row, column)

    return RegisterMap(
        name,
        tuple(
            tuple(place(lane, element) for element in range(fragment.elements))
            for lane in range(warps * LANES)
        ),
    )


# -- both products see the operand between them alike ---------------------------------------------


def _coordinates(
    operand: PackedOperand, program: DerivedProgram, loops: Sequence[Loop], axis: str, extent: int
) -> bytes:
    """Return the elements of an operand at each step of loops and an axis, as a key.

    Padding at the end is left out: both products may be padded, to multiples of different extents.
    """
    count = math.prod(loop.extent for loop in loops) * extent
    number = np.arange(count)
    values: dict[str, Any] = {
        **dict.fromkeys(program.extents, np.int64(0)),
        **digit_values(number // extent, loops),
        axis: number % extent,
    }
    coordinates = np.stack(
        [np.broadcast_to(index.evaluate(values), count) for index in original_access(operand)]
    )
    sizes = np.array(operand.original_shape)[:, None]
    inside: NDArray[np.bool_] = np.all(np.less(coordinates, sizes), axis=0)
    return coordinates[:, : count - int(np.argmax(inside[::-1]))].tobytes()

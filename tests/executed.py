"""Derived programs executed operation by operation on packed operands: slow, and plain."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.driver.result import SolveResult
from cpembed.ir.computation import Axis, AxisKind, Computation, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr
from cpembed.ir.interpreter import interpret_all
from cpembed.ir.reference import random_inputs
from cpembed.transform.program import (
    DerivedProgram,
    PackedOperand,
    accessed,
    iterators,
    pack,
    unpack,
)

Array = NDArray[Any]


def execute(program: DerivedProgram, inputs: Mapping[str, Array]) -> Array:
    """The output of a program with one; see :func:`execute_all`."""
    (result,) = execute_all(program, inputs).values()
    return result


def execute_all(program: DerivedProgram, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run the program operation by operation on packed operands; for small programs.

    The scalar statements are the workload's; loops and lanes are its iterations. Inputs and results
    are by tensor: ports of one tensor read and write its elements.
    """
    workload = program.workload
    packed = {
        operand.name: pack(program.operand(operand.name), inputs[operand.tensor])
        for operand in workload.inputs
    }
    results: dict[str, Array] = {}
    for name, found in interpret_all(packed_computation(program), packed).items():
        values = _stored(program.operand(name), found, program)
        tensor = workload.operand(name).tensor
        # Ports of one tensor write different elements; those of the others are zero here.
        part = unpack(program.operand(name), values, program)
        results[tensor] = part if tensor not in results else results[tensor] + part
    return results


def assert_programs_compute(result: SolveResult, seed: int = 3) -> None:
    """Check the program of each listed embedding against the workload's interpretation."""
    inputs = random_inputs(result.workload, seed)
    expected = interpret_all(result.workload, inputs)
    for ranked in result.embeddings:
        values = execute_all(ranked.candidate.program, inputs)
        assert values.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(values[name], array)


def _again(program: DerivedProgram) -> dict[str, int]:
    """Loops over overlapping tiles of the output, and their extents: each of their iterations sums
    for itself, and stores what another one may have stored before."""
    return {o.loop: o.count for o in program.overlaps if o.kind is AxisKind.SPATIAL}


def _stored(operand: PackedOperand, sums: Array, program: DerivedProgram) -> Array:
    """The packed output from the sums of :func:`packed_computation`."""
    again = _again(program)
    result = np.zeros(operand.shape, sums.dtype)
    grid = iterators(program)
    shape = tuple(program.extents.values())
    walked = [np.broadcast_to(grid[name], shape) for name in again]
    places = accessed(operand, program)
    result[places] = sums[(*walked, *places)]
    return result


def packed_computation(program: DerivedProgram) -> Computation:
    """The program as a computation over loops and lanes on packed operands.

    Outputs have a dimension before their own for each loop over overlapping tiles of theirs.
    """
    # Some accesses name an iterator of extent 1 and others leave it out; results must all be
    # indexed by the same axes, so none names it.
    still = {name: IndexExpr() for name, extent in program.extents.items() if extent == 1}
    access = {
        o.name: Access(o.name, tuple(index.substitute(still) for index in o.access))
        for o in program.operands
    }
    workload = program.workload
    again = _again(program)
    loops = tuple(IndexExpr.iterator(name) for name in again)
    for output in workload.outputs:
        access[output.name] = Access(output.name, (*loops, *access[output.name].index))
    axes = tuple(
        Axis(loop.name, loop.extent, loop.kind)
        for loop in (*program.loops, *program.instruction_axes)
    )
    used = {n for a in access.values() for i in a.index for n in i.iterators}

    def packed(operand: Operand) -> Operand:
        shape = program.operand(operand.name).shape
        if operand in workload.outputs:
            shape = (*again.values(), *shape)
        return replace(operand, shape=shape, zero_outside=False, port_of=None)

    return Computation(
        f"{workload.name}.packed",
        tuple(axis for axis in axes if axis.name in used),
        tuple(packed(operand) for operand in workload.inputs),
        tuple(packed(operand) for operand in workload.outputs),
        changed_accesses(workload.statements, lambda read: access[read.operand]),
    )

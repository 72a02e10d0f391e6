"""Tensors that have to pass through main memory between statements, whatever the program.

A statement's result is where an instruction that computes it writes it. From there, instructions
carry values from the memories that they read to those that they write. Where no sequence of them
leads to where another statement reads the result, except through main memory, every program stores
and loads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cpembed.accelerator.matching import Matching
from cpembed.accelerator.specification import Specification
from cpembed.hw.isa import InstructionSet, MemoryKind
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import bits


@lru_cache(maxsize=64)
def _reached(machine: InstructionSet) -> dict[str, frozenset[str]]:
    """Return the memories to which instructions carry values of a memory without main memory."""
    edges: dict[str, set[str]] = {
        m.name: {m.name} for m in machine.memories.values() if m.kind is MemoryKind.ROWS
    }
    for instruction in machine.instructions.values():
        written = {instruction.places[o].memory for o in instruction.outputs} & edges.keys()
        for operand in instruction.inputs:
            edges.get(instruction.places[operand].memory, set()).update(written)
    for through, further in edges.items():
        for reached in edges.values():
            if through in reached:
                reached.update(further)
    return {start: frozenset(ends) for start, ends in edges.items()}


def crossing_tensors(matchings: Sequence[Matching], machine: InstructionSet) -> frozenset[str]:
    """Return the tensors that every program stores to main memory and loads again.

    Parameters
    ----------
    matchings : sequence of Matching
        Matches of consecutive statements.
    machine : InstructionSet
    """
    written: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    for matching in matchings:
        computation = matching.statement.computation
        for match in matching.matches:
            for operand, access in match.accesses.items():
                tensor = computation.operand(access.operand).tensor
                memory = match.instruction.places[operand].memory
                is_output = operand in match.instruction.outputs
                (written if is_output else read).setdefault(tensor, set()).add(memory)
    reached = _reached(machine)
    return frozenset(
        tensor
        for tensor, starts in written.items()
        if tensor in read
        and not any(reached.get(start, frozenset()) & read[tensor] for start in starts)
    )


def compulsory_bytes(
    specification: Specification, matchings: Sequence[Matching], machine: InstructionSet
) -> int:
    """Return a lower bound of the bytes to and from main memory of every program.

    Inputs and outputs cross once, and results that cannot stay on chip are stored and loaded
    besides. The programs are those that compute each statement by an instruction that matches it.

    Parameters
    ----------
    specification : Specification
        Inputs and outputs of which all elements are needed.
    matchings : sequence of Matching
        Matches of its statements.
    machine : InstructionSet
    """
    crossings = dict.fromkeys((*specification.inputs, *specification.constants), 1)
    crossings |= dict.fromkeys(specification.outputs, 1)
    for tensor in crossing_tensors(matchings, machine):
        if any(_is_read_whole(m.statement.computation, tensor) for m in matchings):
            crossings[tensor] = 2
    return sum(
        count * math.prod(operand.shape) * bits(operand.dtype) // 8
        for tensor, count in crossings.items()
        for operand in [specification.operands[tensor]]
    )


def _is_read_whole(computation: Computation, tensor: str) -> bool:
    """True if a statement reads every element of a tensor."""
    for access in computation.reads:
        operand = computation.operand(access.operand)
        if operand.tensor != tensor:
            continue
        iterators = [e.single_iterator for e in access.index]
        extents = [computation.extents[i] if i is not None else 0 for i in iterators]
        if len(set(iterators)) == len(iterators) and tuple(extents) == tuple(operand.shape):
            return True
    return False

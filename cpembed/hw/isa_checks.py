"""Checks of a whole instruction set: what feeds and drains its memories, what may overflow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cpembed.hw.isa import IMMEDIATE, InstructionSet, IsaInstruction, MemoryKind
from cpembed.hw.schema import Key, joined, spec_error
from cpembed.ir.computation import Operand
from cpembed.ir.dtypes import dtype_info, is_integer
from cpembed.ir.expression import Access, Expression
from cpembed.ir.ranges import typed_range

_ENOUGH_SUMMANDS = 2**15
"""Number of additions that an accumulator should hold: more than the deepest sums of networks, of
some thousands of products to some tens of thousands."""


def check_flow(machine: InstructionSet) -> None:
    """Check that data reach every memory from main memory and come back to it.

    Raises
    ------
    SpecError
        In one line, for a register that nothing sets or nothing reads, a memory that no instruction
        fills or empties, and an instruction whose operands never hold anything.
    """
    _check_registers(machine)
    _check_fed(machine)
    _check_drained(machine)


def _read_memories(machine: InstructionSet, instruction: IsaInstruction) -> set[str]:
    """Memories that hold something before an instruction can be executed, registers included."""
    names = {*instruction.inputs, *(instruction.outputs if instruction.reads_outputs else ())}
    memories = {instruction.places[name].memory for name in names} - {IMMEDIATE}
    return memories | {
        stride
        for place in instruction.places.values()
        for stride in place.strides.values()
        if isinstance(stride, str) and stride in machine.memories
    }


def _written_memories(instruction: IsaInstruction) -> set[str]:
    return {instruction.places[name].memory for name in instruction.outputs}


def _check_registers(machine: InstructionSet) -> None:
    instructions = machine.instructions.values()
    for name, memory in machine.memories.items():
        if memory.kind is not MemoryKind.REGISTER:
            continue
        readers = [i.name for i in instructions if name in _read_memories(machine, i)]
        writers = [i.name for i in instructions if name in _written_memories(i)]
        key: Key = ("memories", name)
        if not writers:
            problem = f"is read by {joined(readers) or 'nothing'} and no instruction sets it"
            remedy = 'add one with the expression "r[] = v[]", r in this register, v immediate'
            raise spec_error(machine.path, key, f"{problem}; {remedy}")
        if not readers:
            problem = f"is set by {joined(writers)} and no instruction reads it; leave it out"
            raise spec_error(machine.path, key, problem)


def _check_fed(machine: InstructionSet) -> None:
    """Check that each instruction can be executed once others have been, from main memory on."""
    filled = {machine.main.name}
    waiting = dict(machine.instructions)
    ready = True
    while ready:
        ready = [name for name, i in waiting.items() if _read_memories(machine, i) <= filled]
        for name in ready:
            filled |= _written_memories(waiting.pop(name))
    for name, memory in machine.memories.items():
        key: Key = ("memories", name)
        users = [i.name for i in machine.instructions.values() if _uses(i, name)]
        problem = "holds no operand of any instruction; leave it out, or add instructions"
        if not users and memory.kind is not MemoryKind.REGISTER:
            raise spec_error(machine.path, key, problem)
    for name, instruction in waiting.items():
        empty = sorted(_read_memories(machine, instruction) - filled)
        writers = [i.name for i in waiting.values() if _written_memories(i) & set(empty)]
        if writers == [name] and instruction.reads_outputs:
            problem = (
                f"adds to {joined(empty)}, which nothing else writes, so that sums never begin"
            )
            remedy = "add an instruction that loads it, fills it, or has accumulate = false"
        elif writers:
            problem = f"reads {joined(empty)}, written only by {joined(writers)}, which waits too"
            remedy = "add an instruction that loads from main memory"
        else:
            problem = f"reads {joined(empty)}, which no instruction writes"
            remedy = "add an instruction that loads it"
        raise spec_error(machine.path, ("instructions", name), f"{problem}; {remedy}")


def _uses(instruction: IsaInstruction, memory: str) -> bool:
    return any(place.memory == memory for place in instruction.places.values())


def _check_drained(machine: InstructionSet) -> None:
    """Check that what is written anywhere can come back to main memory."""
    drained = {machine.main.name}
    grows = True
    while grows:
        grows = False
        for instruction in machine.instructions.values():
            reads = _read_memories(machine, instruction)
            if _written_memories(instruction) & drained and not reads <= drained:
                drained |= reads
                grows = True
    for name, memory in machine.memories.items():
        if memory.kind is MemoryKind.ROWS and name not in drained:
            problem = f"what is in it never reaches {machine.main.name}"
            problem += "; add an instruction that stores it, or that computes from it"
            raise spec_error(machine.path, ("memories", name), problem)


def overflow_warnings(instructions: Iterable[IsaInstruction]) -> tuple[str, ...]:
    """Return a line for each sum that few additions can overflow.

    A sum that saturates is no reason to warn, nor one that is a float.
    """
    return tuple(line for instruction in instructions for line in _overflows(instruction))


def _overflows(instruction: IsaInstruction) -> Iterator[str]:
    computation = instruction.computation
    if instruction.saturates:
        return
    for statement in computation.statements:
        output = computation.operand(statement.store.operand)
        if statement.reduction != "add" or not is_integer(output.dtype):
            continue
        value = statement.value
        # Nothing is known of the sizes of numbers that are as wide as their sum.
        if isinstance(value, Access) and computation.operand(value.operand).dtype == output.dtype:
            continue
        bounds = typed_range(value, {o.name: o.dtype for o in computation.operands})
        if bounds is None:
            continue
        low, high = dtype_info(output.dtype).integer_range
        limits = ((high, bounds[1]), (-low, -bounds[0]))
        counts = [limit // step for limit, step in limits if step > 0]
        if counts and min(counts) < _ENOUGH_SUMMANDS:
            yield _overflow_line(instruction, output, value, min(counts))


def _overflow_line(
    instruction: IsaInstruction, output: Operand, value: Expression, summands: int
) -> str:
    memory = instruction.places[output.name].memory
    begin = f"{instruction.name}: {output.name} ({output.dtype} in {memory}) "
    if summands == 0:
        return f"{begin}may be too small for a single {value}"
    count = f"{summands:,} summand{'s' if summands > 1 else ''}"
    return f"{begin}holds any {count} of {value}; longer sums may wrap around"

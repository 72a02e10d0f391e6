"""Mutants of programs: one mistake each, as people and planners make them.

:func:`mutants` changes what the machine executes and keeps every claim, so that a proof has to find
the mistake. :func:`verdict` runs a mutant: it faults, computes something else, or is equal to the
program, which is proven where it executes the same (:func:`same_executions`).
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpembed.accelerator.assembly import issue_text
from cpembed.accelerator.executor import execute
from cpembed.accelerator.program import Address, Issue, Loop, Node, Program
from cpembed.accelerator.trace import unroll
from cpembed.errors import ExecutionFault, ProgramError
from cpembed.hw.isa import IMMEDIATE, MemoryKind, Synchronization
from cpembed.ir.dtypes import dtype_info, is_integer, numpy_dtype
from cpembed.ir.index import IndexExpr
from tests.unit.accelerator.slow_machine import SlowMachine

Array = np.ndarray[Any, Any]
Change = Callable[[random.Random, Program, Issue], Issue | None]
"""Change of an instruction; None if it cannot have this mistake."""


@dataclass(frozen=True)
class Mutant:
    """A program with a mistake of a kind, and what was changed."""

    kind: str
    change: str
    program: Program


def _kind_of(program: Program, issue: Issue, operand: str) -> MemoryKind | None:
    memory = program.machine.instructions[issue.instruction].places[operand].memory
    return None if memory == IMMEDIATE else program.machine.memories[memory].kind


def _operands(program: Program, issue: Issue, kind: MemoryKind) -> list[str]:
    return [name for name in issue.operands if _kind_of(program, issue, name) is kind]


def _moved(issue: Issue, name: str, change: Callable[[Address], Address]) -> Issue:
    return replace(issue, operands={**issue.operands, name: change(issue.operands[name])})


def _shifted(kind: MemoryKind, step: Callable[[random.Random, Program, str], int]) -> Change:
    def change(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
        names = _operands(program, issue, kind)
        if not names:
            return None
        name = draw.choice(names)
        memory = program.machine.instructions[issue.instruction].places[name].memory
        by = step(draw, program, memory)
        return _moved(issue, name, lambda a: replace(a, base=a.base + by)) if by else None

    return change


def _swapped_buffers(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    places = program.machine.instructions[issue.instruction].places
    names = _operands(program, issue, MemoryKind.ROWS)
    pairs = [(a, b) for a in names for b in names if a < b and places[a].memory == places[b].memory]
    if not pairs:
        return None
    a, b = draw.choice(pairs)
    return replace(issue, operands={**issue.operands, a: issue.operands[b], b: issue.operands[a]})


def _early_reuse(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    names = [n for n in _operands(program, issue, MemoryKind.ROWS) if issue.operands[n].base.terms]
    if not names:
        return None
    name = draw.choice(names)

    def one_buffer(address: Address) -> Address:
        terms = list(address.base.terms)
        terms.pop(draw.randrange(len(terms)))
        return replace(address, base=IndexExpr.sum(terms, address.base.constant))

    return _moved(issue, name, one_buffer)


def _wrong_step(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    names = [n for n, a in issue.operands.items() if a.base.terms]
    if not names:
        return None
    name = draw.choice(names)

    def other(address: Address) -> Address:
        terms = list(address.base.terms)
        at = draw.randrange(len(terms))
        terms[at] = terms[at].times(1, draw.choice([-1, 1]))
        return replace(address, base=IndexExpr.sum(terms, address.base.constant))

    return _moved(issue, name, other)


def _size(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    if not issue.sizes:
        return None
    axis = draw.choice(list(issue.sizes))
    by = draw.choice([-1, 1])
    return replace(issue, sizes={**issue.sizes, axis: tuple(e + by for e in issue.sizes[axis])})


def _stride(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    names = [n for n, a in issue.operands.items() if a.strides]
    if not names:
        return None
    name = draw.choice(names)
    key = draw.choice(list(issue.operands[name].strides))

    def other(address: Address) -> Address:
        return replace(address, strides={**address.strides, key: address.strides[key] + 1})

    return _moved(issue, name, other)


def _register(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    instruction = program.machine.instructions[issue.instruction]
    immediates = [n for n in issue.operands if instruction.places[n].memory == IMMEDIATE]
    if not instruction.is_configuration or not immediates:
        return None

    def other(address: Address) -> Address:
        if address.value is not None:
            return replace(address, value=address.value * 2 + 1)
        return replace(address, base=address.base + 1)

    return _moved(issue, immediates[0], other)


def _without(field: str) -> Change:
    def change(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
        items = getattr(issue, field)
        if not items:
            return None
        at = draw.randrange(len(items))
        return replace(issue, **{field: (*items[:at], *items[at + 1 :])})

    return change


def _guard(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    if not issue.guards:
        return None
    by = draw.choice([-1, 1])
    return replace(issue, guards=(issue.guards[0] + by, *issue.guards[1:]))


def _other_instruction(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    """Take an instruction of equal operands and sizes, such as one that begins its sum anew."""
    machine = program.machine
    used = machine.instructions[issue.instruction]

    def shape(name: str) -> Any:
        i = machine.instructions[name]
        places = {n: (p.memory, p.dtype, p.stride_arguments) for n, p in i.places.items()}
        return places, [axis.name for axis in i.size_arguments]

    others = [
        name
        for name in machine.instructions
        if name != used.name and shape(name) == shape(used.name)
    ]
    return replace(issue, instruction=draw.choice(others)) if others else None


def _other_tensor(draw: random.Random, program: Program, issue: Issue) -> Issue | None:
    names = _operands(program, issue, MemoryKind.MAIN)
    if not names:
        return None
    name = draw.choice(names)
    tensors = program.tensors
    dtype = tensors[issue.operands[name].tensor].dtype
    others = [t for t in tensors if tensors[t].dtype == dtype and t != issue.operands[name].tensor]
    if not others:
        return None
    return _moved(issue, name, lambda a: replace(a, tensor=draw.choice(others)))


def _bank(draw: random.Random, program: Program, memory: str) -> int:
    described = program.machine.memories[memory]
    return described.bank_rows if described.banks > 1 else 0


CHANGES: Mapping[str, Change] = {
    "row off by one": _shifted(MemoryKind.ROWS, lambda draw, *_: draw.choice([-1, 1])),
    "element off by one": _shifted(MemoryKind.MAIN, lambda draw, *_: draw.choice([-1, 1])),
    "wrong bank": _shifted(MemoryKind.ROWS, _bank),
    "swapped buffers": _swapped_buffers,
    "early reuse": _early_reuse,
    "wrong step": _wrong_step,
    "size off by one": _size,
    "wrong stride": _stride,
    "stale register": _register,
    "missing wait": _without("waits"),
    "missing signal": _without("signals"),
    "wrong guard": _guard,
    "other instruction": _other_instruction,
    "other tensor": _other_tensor,
}
"""Mistakes in one instruction of the text. Others are a missing or a repeated instruction, two
neighbours in the wrong order, and a loop that is too short."""


def mutants(program: Program, seed: int, count: int) -> Iterator[Mutant]:
    """Yield random mutants, of all kinds that a program can have in turn."""
    draw = random.Random(seed)
    kinds = [*CHANGES, "missing instruction", "missing load", "wrong order", "short loop"]
    made = attempts = 0
    while made < count and attempts < 100 * count:
        kind = kinds[attempts % len(kinds)]
        attempts += 1
        issues = [issue for _, issue in program.issues()]
        mutant = _mutant(draw, program, kind, draw.choice(issues))
        if mutant is not None:
            made += 1
            yield mutant


def _mutant(draw: random.Random, program: Program, kind: str, issue: Issue) -> Mutant | None:
    text = issue_text(issue, program)
    if kind in CHANGES:
        changed = CHANGES[kind](draw, program, issue)
        if changed is None or changed == issue:
            return None
        body = _replaced(program.body, issue, (changed,))
        return Mutant(kind, f"{text} -> {issue_text(changed, program)}", _with(program, body))
    if kind == "missing instruction":
        return Mutant(kind, text, _with(program, _replaced(program.body, issue, ())))
    if kind == "missing load":
        if not _is_load(program, issue):
            return None
        return Mutant(kind, text, _with(program, _replaced(program.body, issue, ())))
    if kind == "wrong order":
        body = _swapped(program.body, issue)
        return None if body is None else Mutant(kind, f"{text} and the next", _with(program, body))
    loops = [loops[-1] for loops, inner in program.issues() if inner is issue and loops]
    if not loops or loops[0].extent == 1:
        return None
    loop = loops[0]
    body = _replaced(program.body, loop, (replace(loop, extent=loop.extent - 1),))
    return Mutant(kind, f"loop {loop.name} {loop.extent - 1}", _with(program, body))


def _is_load(program: Program, issue: Issue) -> bool:
    instruction = program.machine.instructions[issue.instruction]
    return any(_kind_of(program, issue, n) is MemoryKind.MAIN for n in instruction.inputs)


def _with(program: Program, body: tuple[Node, ...]) -> Program:
    return replace(program, body=body)


def _replaced(nodes: tuple[Node, ...], old: Node, new: tuple[Node, ...]) -> tuple[Node, ...]:
    result: list[Node] = []
    for node in nodes:
        if node is old:
            result += new
        elif isinstance(node, Loop):
            body = _replaced(node.body, old, new)
            result += [replace(node, body=body)] if body else []
        else:
            result.append(node)
    return tuple(result)


def _swapped(nodes: tuple[Node, ...], issue: Issue) -> tuple[Node, ...] | None:
    """Exchange an instruction with the node after it; None if it is the last one."""
    for at, node in enumerate(nodes):
        if node is issue:
            if at + 1 == len(nodes):
                return None
            return (*nodes[:at], nodes[at + 1], node, *nodes[at + 2 :])
        if isinstance(node, Loop):
            body = _swapped(node.body, issue)
            if body is not None:
                return (*nodes[:at], replace(node, body=body), *nodes[at + 1 :])
    return None


# -- verdicts -------------------------------------------------------------------------------------


def random_buffers(program: Program, seed: int) -> dict[str, Array]:
    """Return random inputs, no two neighbours of which are equal where the type allows."""
    draw = np.random.default_rng(seed)
    buffers: dict[str, Array] = {}
    for name, tensor in program.tensors.items():
        if tensor.role not in ("input", "constant"):
            continue
        dtype = numpy_dtype(tensor.dtype)
        if is_integer(tensor.dtype):
            low, high = dtype_info(tensor.dtype).integer_range
            array = draw.integers(low, high, tensor.shape, dtype, endpoint=True)
        else:
            array = draw.uniform(-2, 2, tensor.shape).astype(dtype)
        buffers[name] = tensor.buffer(array)
    return buffers


def outputs(program: Program, seed: int) -> dict[str, Array]:
    run = execute(program, random_buffers(program, seed), seed)
    roles = {name: tensor.role for name, tensor in program.tensors.items()}
    return {name: buffer for name, buffer in run.buffers.items() if roles[name] == "output"}


def verdict(program: Program, mutant: Program, seeds: int = 4) -> str:
    """Return ``fault``, ``different``, ``same executions``, ``same terms`` or ``equal``.

    A mutant is proven equal by the same executions, or by the same terms: each element of the
    outputs is the same expression of inputs. ``equal`` is equal on all random inputs, unproven.
    """
    if same_executions(program, mutant):
        return "same executions"
    for seed in range(seeds):
        try:
            result = outputs(mutant, seed)
        except (ExecutionFault, ProgramError):
            return "fault"
        expected = outputs(program, seed)
        for name, buffer in expected.items():
            if not np.array_equal(buffer, result[name], equal_nan=buffer.dtype.kind == "f"):
                return "different"
    return "same terms" if terms(program) == terms(mutant) else "equal"


def same_executions(program: Program, mutant: Program) -> bool:
    """True if two programs execute the same instructions with the same arguments and signals."""

    def executions(p: Program) -> dict[str, list[Any]]:
        trace = unroll(p)
        # With channels, the order of the text says nothing about two units.
        by_unit = p.machine.synchronization is Synchronization.CHANNELS
        result: dict[str, list[Any]] = defaultdict(list)
        for piece in trace:
            for number, record in zip(piece.issues, piece.records, strict=True):
                issue = trace.issues[number]
                width = trace.fields[issue.instruction].width
                key = (issue.instruction, issue.waits, issue.signals)
                unit = p.machine.instructions[issue.instruction].unit if by_unit else ""
                result[unit].append((*key, tuple(record[:width].tolist())))
        return dict(result)

    try:
        return executions(program) == executions(mutant)
    except ProgramError:
        return False


def terms(program: Program) -> dict[str, list[int]]:
    """Return for each element of the outputs a number that stands for its expression of inputs."""
    machine = _TermMachine(program, random_buffers(program, 0))
    machine.run()
    return {
        name: [machine.terms.get((name, at, 0), -1) for at in range(tensor.elements)]
        for name, tensor in program.tensors.items()
        if tensor.role == "output"
    }


class _TermMachine(SlowMachine):
    """A slow machine that also knows the expression of each element, by its hash."""

    def __init__(self, program: Program, buffers: Mapping[str, Array]) -> None:
        super().__init__(program, buffers)
        self.terms: dict[Any, int] = {}

    def execute(self, issue: Issue, values: Mapping[str, int]) -> None:
        instruction = self.machine.instructions[issue.instruction]
        sizes = dict(instruction.extents)
        for axis in instruction.size_arguments:
            sizes[axis.name] = min(e.evaluate(values) for e in issue.sizes[axis.name])
        places = {
            o.name: self._elements(
                instruction, o.name, issue.operands.get(o.name, Address()), sizes, values
            )
            for o in instruction.computation.operands
        }

        def cells(name: str, index: tuple[int, ...]) -> list[Any]:
            place = instruction.places[name]
            if place.memory == IMMEDIATE:
                address = issue.operands[name]
                return [("immediate", address.base.evaluate(values), address.value)]
            at = places[name][index]
            if at is None:
                return [place.memory]
            if self.machine.memories[place.memory].kind is MemoryKind.MAIN:
                return [(*at, 0)]
            width = dtype_info(place.dtype).storage_bits
            return [(place.memory, at[0], (at[1] * width + b) // 4) for b in range(0, width, 4)]

        def term(name: str, index: tuple[int, ...]) -> int:
            # What nothing wrote is named by its place, such as an element of an input.
            return hash(tuple(self.terms.get(c, hash(c)) for c in cells(name, index)))

        new: dict[Any, int] = {}
        for number, statement in enumerate(instruction.computation.statements):
            spatial = statement.store.iterators
            inner = [a for a in sizes if a not in spatial]
            output = statement.store.operand
            for point in itertools.product(*(range(sizes[a]) for a in spatial)):
                at = dict(zip(spatial, point, strict=True))
                index = tuple(e.evaluate(at) for e in statement.store.index)
                parts = [term(output, index)] if instruction.reads_outputs else []
                for rest in itertools.product(*(range(sizes[a]) for a in inner)):
                    full = {**at, **dict(zip(inner, rest, strict=True))}
                    parts += [
                        term(r.operand, tuple(e.evaluate(full) for e in r.index))
                        for r in statement.reads
                    ]
                for part, cell in enumerate(cells(output, index)):
                    new[cell] = hash((str(statement), instruction.saturates, number, part, *parts))
        super().execute(issue, values)
        self.terms |= new

"""Programs as readable text: :func:`text` writes one, :func:`parse` reads one.

    .program product
    .machine gemmini
    .tensor A int8 [64, 64] input
    .tensor C int8 [64, 64] output order=[0, 1, 1] blocks={1: 16}

    loop i 4 {
      mvin D=scratchpad[16*i] S=A[1024*i; r=64] r=16 e=min(16, 64 - 16*i)   # rows of A
        | D holds A[16*i + r, e]
      matmul A=scratchpad[16*i] B=array[0] C=accumulator[0] if 3 - i wait loaded signal done
        | computes 0: x=16*i + x, y=y, z=z
    }

An operand in a memory of rows is ``memory[row]`` or ``memory[row, lane]``; in main memory it is
``tensor[element]``; a register is its name; an immediate is ``#number``, or ``#[3, 5, 8][i]`` for
one of several. Strides that are arguments follow a semicolon. An instruction is executed where no
expression after ``if`` is negative. Lines that begin with ``|`` are claims, which the proof checks;
comments after ``#`` at the end of an instruction are its note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cpembed.accelerator.assembly_reader import parse
from cpembed.accelerator.program import (
    Address,
    Issue,
    Loop,
    MainTensor,
    Node,
    Program,
)
from cpembed.hw.isa import IMMEDIATE, InstructionSet, MemoryKind

__all__ = ["issue_text", "parse", "text"]


def text(program: Program) -> str:
    """Write a program, without its specification."""
    lines = [f".program {program.name}", f".machine {program.machine.name}"]
    lines += [_tensor_text(tensor) for tensor in program.tensors.values()]
    lines.append("")
    lines += _body(program, program.body, 0)
    return "\n".join(lines) + "\n"


def issue_text(issue: Issue, program: Program) -> str:
    """Write an instruction on one line, without claims and note."""
    machine = program.machine
    instruction = machine.instructions[issue.instruction]
    words = [issue.instruction]
    for name, address in issue.operands.items():
        words.append(f"{name}={_address_text(instruction.places[name], address, machine)}")
    for axis, size in issue.sizes.items():
        value = str(size[0]) if len(size) == 1 else f"min({', '.join(map(str, size))})"
        words.append(f"{axis}={value}")
    if issue.guards:
        words.append(f"if {', '.join(map(str, issue.guards))}")
    if issue.waits:
        words.append(f"wait {', '.join(issue.waits)}")
    if issue.signals:
        words.append(f"signal {', '.join(issue.signals)}")
    return " ".join(words)


def _tensor_text(tensor: MainTensor) -> str:
    shape = list(tensor.shape)
    words = [f".tensor {tensor.name} {tensor.dtype} {shape} {tensor.role}"]
    if tensor.order != tuple(range(len(shape))):
        words.append(f"order={list(tensor.order)}")
    for name, margins in (("before", tensor.before), ("after", tensor.after)):
        if any(margins):
            words.append(f"{name}={list(margins)}")
    if tensor.blocks:
        words.append(f"blocks={dict(tensor.blocks)}")
    if tensor.fill or isinstance(tensor.fill, float):
        words.append(f"fill={tensor.fill!r}")
    return " ".join(words)


def _body(program: Program, nodes: tuple[Node, ...], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for node in nodes:
        if isinstance(node, Loop):
            yield f"{margin}loop {node.name} {node.extent} {{"
            yield from _body(program, node.body, depth + 1)
            yield f"{margin}}}"
            continue
        note = f"  # {json.dumps(node.note)[1:-1]}" if node.note else ""
        yield f"{margin}{issue_text(node, program)}{note}"
        for name, content in node.contents.items():
            index = ", ".join(map(str, content.index))
            yield f"{margin}  | {name} holds {content.tensor}[{index}]"
        if node.meaning is not None:
            points = ", ".join(f"{axis}={at}" for axis, at in node.meaning.points.items())
            yield f"{margin}  | computes {node.meaning.statement}: {points}"


def _address_text(place: Any, address: Address, machine: InstructionSet) -> str:
    if place.memory == IMMEDIATE:
        if address.table:
            return f"#{list(address.table)!r}[{address.base}]"
        if address.value is not None:
            return f"#{address.value!r}"
        value = str(address.base)
        return f"#{value}" if value.lstrip("-").isdigit() else f"#({value})"
    kind = machine.memories[place.memory].kind
    if kind is MemoryKind.REGISTER:
        return place.memory
    strides = "".join(f"; {key}={value}" for key, value in address.strides.items())
    lane = "" if address.lane.constant == 0 and not address.lane.terms else f", {address.lane}"
    memory = address.tensor if kind is MemoryKind.MAIN else place.memory
    return f"{memory}[{address.base}{lane}{strides}]"

"""Reader of the assembly of accelerators (:mod:`cpembed.accelerator.assembly`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from cpembed.accelerator.index_text import IndexReader, IndexSyntaxError
from cpembed.accelerator.program import (
    Address,
    Content,
    Issue,
    Loop,
    MainTensor,
    Meaning,
    Node,
    Program,
)
from cpembed.errors import ProgramError
from cpembed.hw.isa import IMMEDIATE, InstructionSet, MemoryKind, OperandPlace
from cpembed.ir.dtypes import DTYPES, INPUT_DTYPES
from cpembed.ir.index import IndexExpr

LARGEST_TEXT = 1 << 26
"""Maximum number of characters of a program's text."""
LARGEST_TENSOR = 1 << 33
"""Maximum number of elements of a tensor's buffer."""
_MAX_RANK, _MAX_LOOPS = 16, 32
_ROLES = ("input", "constant", "output", "temporary")

_NAME = re.compile(r"[A-Za-z_][\w./:-]*", re.ASCII)
_TITLE = re.compile(r"\S+(?: (?!#)\S+)*")
_KEY = re.compile(r"[A-Za-z_]\w*(?:/\d{1,9})?(?:%\d{1,9})?", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)", re.ASCII
)


@dataclass
class _Block:
    """A loop that is open, or the program."""

    name: str
    extent: int
    nodes: list[Node] = field(default_factory=list[Node])
    line: int = 0


@dataclass
class _Line:
    """A line with a position, from which tokens are read."""

    text: str
    number: int
    source: str = "program"
    position: int = 0

    def fail(self, problem: str, column: int | None = None) -> NoReturn:
        at = self.position if column is None else column
        raise ProgramError(f"{self.source}: line {self.number}, column {at + 1}: {problem}")

    def skip(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in " \t":
            self.position += 1

    def mark(self) -> int:
        """Return the position of the next token."""
        self.skip()
        return self.position

    @property
    def at_end(self) -> bool:
        self.skip()
        rest = self.text[self.position :]
        # A '#' after anything but a space begins an immediate.
        begins = self.position == 0 or self.text[self.position - 1] in " \t"
        return not rest or (rest[0] == "#" and begins)

    def starts_with(self, symbol: str) -> bool:
        self.skip()
        return self.text.startswith(symbol, self.position)

    def accept(self, symbol: str) -> bool:
        if not self.starts_with(symbol):
            return False
        self.position += len(symbol)
        return True

    def expect(self, symbol: str, purpose: str) -> None:
        if not self.accept(symbol):
            self.fail(f"expected {symbol!r} {purpose}")

    def match(self, pattern: re.Pattern[str], description: str) -> str:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(f"expected {description}")
        self.position = match.end()
        return match.group()

    def name(self, description: str) -> str:
        return self.match(_NAME, description)

    def word(self, word: str) -> bool:
        """Accept a word that is followed by no other letter, '=' or bracket."""
        self.skip()
        end = self.position + len(word)
        following = self.text[end : end + 1]
        if not self.text.startswith(word, self.position) or following not in ("", " ", "\t", "{"):
            return False
        self.position = end
        return True

    def expression(self) -> IndexExpr:
        self.skip()
        reader = IndexReader(self.text, self.position)
        try:
            result = reader.expression()
        except IndexSyntaxError as error:
            self.fail(str(error), error.column)
        self.position = reader.position
        return result

    def integer(self, description: str, least: int = 0) -> int:
        start = self.mark()
        value = self.expression()
        if value.terms or value.constant < least:
            self.fail(f"{description} is an integer of at least {least}", start)
        return value.constant

    def list_of(self, read: Callable[[], Any]) -> list[Any]:
        self.expect("[", "and a list")
        items: list[Any] = []
        if not self.accept("]"):
            items.append(read())
            while self.accept(","):
                items.append(read())
            self.expect("]", "at the end of the list")
        return items

    def integers(self, description: str) -> tuple[int, ...]:
        values = self.list_of(lambda: self.integer(description))
        if len(values) > _MAX_RANK:
            self.fail(f"more than {_MAX_RANK} dimensions")
        return tuple(values)

    def number_value(self) -> int | float:
        text = self.match(_NUMBER, "a number")
        if text.lstrip("+-").isdigit():
            if len(text) > 19:
                self.fail("more than 18 digits")
            return int(text)
        return float(text)


def parse(source: str, machine: InstructionSet, name: str = "program") -> Program:
    """Read a program, which has no specification.

    Parameters
    ----------
    source : str
        The text.
    machine : InstructionSet
        The machine that it is for.
    name : str
        Name of the file, for messages.

    Raises
    ------
    ProgramError
        With line and column, the problem and the remedy.
    """
    if len(source) > LARGEST_TEXT:
        raise ProgramError(f"{name}: more than {LARGEST_TEXT:,} characters: write loops")
    return _ProgramReader(machine, name).read(source)


class _ProgramReader:
    def __init__(self, machine: InstructionSet, source: str) -> None:
        self._machine, self._source = machine, source
        self._name = "program"
        self._tensors: dict[str, MainTensor] = {}
        self._blocks = [_Block("", 1)]

    def read(self, source: str) -> Program:
        last = 0
        for number, text in enumerate(source.splitlines(), 1):
            self._line(_Line(text.rstrip(), number, self._source))
            last = number
        if len(self._blocks) > 1:
            block = self._blocks[-1]
            raise ProgramError(
                f"{self._source}: line {last}, column 1: loop {block.name} of line {block.line} is "
                "not closed: add '}'"
            )
        return Program(self._name, self._machine, self._tensors, tuple(self._blocks[0].nodes))

    def _line(self, line: _Line) -> None:
        if line.at_end:
            return
        if line.accept("."):
            self._directive(line)
        elif line.accept("|"):
            self._claim(line)
        elif line.accept("}"):
            self._close(line)
        elif line.word("loop"):
            self._open(line)
        else:
            self._blocks[-1].nodes.append(self._issue(line))
            return
        if not line.at_end:
            line.fail("unexpected text: write it on a line of its own")

    # -- directives and loops ---------------------------------------------------------------------

    def _directive(self, line: _Line) -> None:
        column = line.mark()
        kind = line.name("program, machine or tensor after '.'")
        if kind == "program":
            self._name = line.match(_TITLE, "the name of the program")
        elif kind == "machine":
            name = line.name("the name of the machine")
            if name != self._machine.name:
                line.fail(
                    f"the program is for {name}, and the target is {self._machine.name}: use "
                    f"--target {name}",
                    column,
                )
        elif kind == "tensor":
            self._tensor(line)
        else:
            line.fail(f"unknown directive .{kind}: use .program .machine .tensor", column)

    def _tensor(self, line: _Line) -> None:
        column = line.mark()
        name = line.name("the name of the tensor")
        if name in self._tensors:
            line.fail(f"tensor {name} is declared twice", column)
        column = line.mark()
        dtype = line.name("its element type")
        if dtype not in INPUT_DTYPES:
            line.fail(f"unknown element type {dtype}: use one of {' '.join(DTYPES)}", column)
        shape = line.integers("a size")
        if any(size < 1 for size in shape):
            line.fail("a size is an integer of at least 1", column)
        attributes: dict[str, Any] = {"role": "temporary"}
        while not line.at_end:
            start = line.mark()
            word = line.name("a role, order=, before=, after=, blocks= or fill=")
            if word in _ROLES:
                attributes["role"] = word
                continue
            line.expect("=", f"after {word}")
            attributes[word] = self._attribute(line, word, start)
        zeros = (0,) * len(shape)
        defaults = {"order": tuple(range(len(shape))), "before": zeros, "after": zeros}
        arguments: dict[str, Any] = {**defaults, **attributes}
        tensor = MainTensor(name, shape, dtype, **arguments)
        self._check_tensor(line, tensor, column)
        self._tensors[name] = tensor

    def _attribute(self, line: _Line, word: str, start: int) -> Any:
        if word in ("order", "before", "after"):
            return line.integers("a number")
        if word == "fill":
            return line.number_value()
        if word != "blocks":
            line.fail(
                f"unknown attribute {word}: use {' '.join(_ROLES)}, order=, before=, after=, "
                "blocks= or fill=",
                start,
            )
        line.expect("{", "and the blocks: blocks={1: 16}")
        blocks: dict[int, int] = {}
        while not line.accept("}"):
            dimension = line.integer("a dimension")
            line.expect(":", "and the size of the block")
            blocks[dimension] = line.integer("a size", 1)
            line.accept(",")
        return blocks

    def _check_tensor(self, line: _Line, tensor: MainTensor, column: int) -> None:
        rank = len(tensor.shape)
        if len(tensor.before) != rank or len(tensor.after) != rank:
            line.fail(f"{tensor.name} has {rank} dimensions: give as many margins", column)
        if any(dimension >= rank for dimension in tensor.blocks):
            line.fail(f"{tensor.name} has {rank} dimensions: block one of them", column)
        expected = sorted([*range(rank), *tensor.blocks])
        if sorted(tensor.order) != expected:
            line.fail(
                f"order={list(tensor.order)} names other dimensions than {expected}: name each "
                "once, and a blocked one twice",
                column,
            )
        if math.prod(tensor.padded) > LARGEST_TENSOR:
            line.fail(
                f"{tensor.name} has more than {LARGEST_TENSOR:,} elements: use a smaller one",
                column,
            )

    def _open(self, line: _Line) -> None:
        column = line.mark()
        name = line.name("the name of the loop")
        if any(block.name == name for block in self._blocks):
            line.fail(f"loop {name} is inside of another one of that name: rename it", column)
        if len(self._blocks) > _MAX_LOOPS:
            line.fail(f"more than {_MAX_LOOPS} loops inside of each other", column)
        extent = line.integer("the number of iterations", 1)
        line.expect("{", "at the end of the line")
        self._blocks.append(_Block(name, extent, line=line.number))

    def _close(self, line: _Line) -> None:
        if len(self._blocks) == 1:
            line.fail("no loop is open: remove '}'")
        block = self._blocks.pop()
        self._blocks[-1].nodes.append(Loop(block.name, block.extent, tuple(block.nodes)))

    # -- instructions -----------------------------------------------------------------------------

    def _issue(self, line: _Line) -> Issue:
        column = line.mark()
        name = line.name("an instruction, loop, '}' or a directive")
        instruction = self._machine.instructions.get(name)
        if instruction is None:
            names = " ".join(self._machine.instructions)
            line.fail(f"{self._machine.name} has no instruction {name}: use {names}", column)
        axes = [axis.name for axis in instruction.axes]
        operands: dict[str, Address] = {}
        sizes: dict[str, tuple[IndexExpr, ...]] = {}
        lists: dict[str, Any] = {}
        while not line.at_end:
            start = line.mark()
            if line.word("if"):
                lists["guards"] = self._several(line, line.expression)
            elif line.word("wait"):
                lists["waits"] = self._several(line, lambda: line.name("a channel"))
            elif line.word("signal"):
                lists["signals"] = self._several(line, lambda: line.name("a channel"))
            else:
                argument = line.name("OPERAND=..., SIZE=..., if, wait or signal")
                line.expect("=", f"after {argument}")
                if argument in operands or argument in sizes:
                    line.fail(f"{argument} is given twice", start)
                if argument in instruction.places:
                    operands[argument] = self._address(line, instruction.places[argument])
                elif argument in axes:
                    sizes[argument] = self._size(line)
                else:
                    arguments = " ".join([*instruction.places, *axes])
                    line.fail(f"{name} has no argument {argument}: use {arguments}", start)
        issue = Issue(name, operands, sizes, note=_note(line), line=line.number, **lists)
        self._check_loops(line, issue, column)
        return issue

    def _check_loops(self, line: _Line, issue: Issue, column: int) -> None:
        loops = {block.name for block in self._blocks[1:]}
        for expression in issue.expressions:
            for name in expression.iterators:
                if name not in loops:
                    line.fail(f"{name} is no loop around this instruction", column)

    @staticmethod
    def _several(line: _Line, read: Callable[[], Any]) -> tuple[Any, ...]:
        items = [read()]
        while line.accept(","):
            items.append(read())
        return tuple(items)

    def _size(self, line: _Line) -> tuple[IndexExpr, ...]:
        line.skip()
        if not re.match(r"min\s*\(", line.text[line.position :]):
            return (line.expression(),)
        line.expect("min", "")
        line.expect("(", "after min")
        items = self._several(line, line.expression)
        line.expect(")", "to close min(")
        return items

    def _address(self, line: _Line, place: OperandPlace) -> Address:
        column = line.mark()
        if place.memory == IMMEDIATE:
            return self._immediate(line)
        name = line.name(f"an operand in {place.memory}")
        kind = self._machine.memories[place.memory].kind
        if kind is MemoryKind.MAIN:
            if name not in self._tensors:
                declared = " ".join(self._tensors) or "none"
                line.fail(f"no tensor {name}: declare it with .tensor, or use {declared}", column)
        elif name != place.memory:
            line.fail(f"the operand lies in {place.memory}, not in {name}", column)
        if kind is MemoryKind.REGISTER:
            return Address()
        line.expect("[", f"and the place in {name}")
        address = Address(line.expression(), name if kind is MemoryKind.MAIN else "")
        if line.accept(","):
            if kind is MemoryKind.MAIN:
                line.fail("an operand in main memory has no lane")
            address = replace(address, lane=line.expression())
        strides: dict[str, int] = {}
        while line.accept(";"):
            start = line.mark()
            key = line.match(_KEY, "the name of a stride")
            if key not in place.stride_arguments:
                arguments = " ".join(place.stride_arguments) or "none"
                line.fail(f"{key} is no stride that is an argument; there are: {arguments}", start)
            line.expect("=", f"after {key}")
            value = line.expression()
            if value.terms:
                line.fail(f"the stride {key} is a number", start)
            strides[key] = value.constant
        line.expect("]", "at the end of the place")
        return replace(address, strides=strides)

    def _immediate(self, line: _Line) -> Address:
        line.expect("#", "before the value of an immediate")
        if line.starts_with("["):
            numbers = tuple(line.list_of(line.number_value))
            if not numbers:
                line.fail("a table has at least one number")
            line.expect("[", "and the place in the table")
            place = line.expression()
            line.expect("]", "after the place in the table")
            return Address(place, table=numbers)
        match = _NUMBER.match(line.text, line.position)
        if match is None:
            return Address(line.expression())
        value = line.number_value()
        return Address(IndexExpr((), value)) if isinstance(value, int) else Address(value=value)

    # -- claims -----------------------------------------------------------------------------------

    def _claim(self, line: _Line) -> None:
        nodes = self._blocks[-1].nodes
        if not nodes or not isinstance(nodes[-1], Issue):
            line.fail("a claim stands below the instruction that it is about")
        issue = nodes[-1]
        if line.word("computes"):
            statement = line.integer("the number of a statement")
            line.expect(":", "and the values of the axes")
            points: dict[str, IndexExpr] = {}
            while not line.at_end:
                axis = line.name("an axis")
                line.expect("=", f"after {axis}")
                points[axis] = line.expression()
                line.accept(",")
            nodes[-1] = replace(issue, meaning=Meaning(statement, points))
            return
        name = line.name("an operand, or computes")
        if name not in self._machine.instructions[issue.instruction].places:
            line.fail(f"{issue.instruction} has no operand {name}")
        if not line.word("holds"):
            line.fail("expected holds TENSOR[index]")
        tensor = line.name("a tensor")
        index = tuple(line.list_of(line.expression))
        nodes[-1] = replace(issue, contents={**issue.contents, name: Content(tensor, index)})


def _note(line: _Line) -> str:
    """Return the comment at the end of an instruction."""
    text = line.text[line.position + 1 :].strip() if not _ended(line) else ""
    try:
        return str(json.loads(f'"{text}"'))
    except json.JSONDecodeError:
        return text


def _ended(line: _Line) -> bool:
    return line.position >= len(line.text)

"""A whole network as C: one function with inputs, outputs, constants and a workspace.

``network.c`` has the function of each program, what the host computes, and the changes of layout,
in their order. Every tensor has a buffer of its own in the workspace, in the layout that its
program needs; the margins of all are filled once. Operators that are no statements of C are
declared as functions that a person writes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cpembed.accelerator.division import HostPart
from cpembed.accelerator.host_code import NUMBERS, specification_function
from cpembed.accelerator.machine_code import (
    c_type,
    preamble,
    program_function,
    without_warnings,
)
from cpembed.accelerator.network_steps import (
    AcceleratorNetwork,
    HostStep,
    LayoutStep,
    ProgramStep,
    ViewStep,
)
from cpembed.accelerator.operators import operator_forms
from cpembed.accelerator.operators.forms import GraphTensor, NoForm
from cpembed.accelerator.program import MainTensor, Program
from cpembed.accelerator.specification import Array, Specification
from cpembed.errors import LoweringError
from cpembed.graph.graph import Operator
from cpembed.ir.dtypes import dtype_info, numpy_dtype

_ALIGNMENT = 64
"""Bytes to whose multiples buffers and constants are aligned."""


@dataclass(frozen=True)
class NetworkCode:
    """A network in C.

    Attributes
    ----------
    source, header : str
        ``network.c`` and ``network.h``.
    constants : bytes
        Contents of ``constants.bin``: weights in the layouts of their programs.
    document : dict
        Sizes, hashes, the order of inputs and outputs, and what a person has to write.
    """

    source: str
    header: str
    constants: bytes
    document: dict[str, Any]


@dataclass
class _Place:
    """Buffer that holds a tensor; ``is_exact`` is false where its margins may be overwritten."""

    pointer: str
    view: GraphTensor
    layout: MainTensor
    shape: tuple[int, ...]
    is_exact: bool = True

    def numbers(self) -> Array:
        """Return the number, from 1, of the tensor's element at each position; 0 in margins."""
        elements = np.arange(1, math.prod(self.shape) + 1).reshape(self.shape)
        return replace(self.layout, dtype="int64", fill=0).buffer(self.view.logical(elements))

    def holds(self, place: _Place) -> bool:
        """True if a program that needs another buffer may use this one, margins included."""
        if not self.is_exact or self.layout.dtype != place.layout.dtype:
            return False
        if self.layout.elements != place.layout.elements:
            return False
        numbers = self.numbers()
        same_fill = self.layout.fill == place.layout.fill or bool(numbers.all())
        return same_fill and np.array_equal(numbers, place.numbers())


def network_code(
    network: AcceleratorNetwork, program_text: Callable[[Program, str], str] = program_function
) -> NetworkCode:
    """Return a network in C.

    Parameters
    ----------
    network : AcceleratorNetwork
    program_text : callable, optional
        Function from a program and a name to the text of the function of that name; by default in
        the machine's own text.

    Raises
    ------
    LoweringError
        If an element type has less than a byte.
    """
    return _Writer(network, program_text).code()


@dataclass
class _Writer:
    network: AcceleratorNetwork
    program_text: Callable[[Program, str], str]
    places: dict[str, list[_Place]] = field(default_factory=dict[str, "list[_Place]"])
    views: dict[str, str] = field(default_factory=dict[str, str])
    functions: list[str] = field(default_factory=list[str])
    externals: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    body: list[str] = field(default_factory=list[str])
    fills: list[str] = field(default_factory=list[str])
    positions: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    constants: bytearray = field(default_factory=bytearray)
    offsets: dict[bytes, int] = field(default_factory=dict[bytes, int])
    workspace: int = 0

    def code(self) -> NetworkCode:
        graph = self.network.graph
        for number, name in enumerate(graph.inputs):
            self.places[name] = [self._row_major(name, f"input{number}")]
        for step in self.network.steps:
            match step:
                case ViewStep(operator):
                    self.views[operator.output] = self._root(operator.inputs[0])
                case LayoutStep():
                    # A program may have overwritten the margins of what is there.
                    for place in self.places.get(self._root(step.tensor), []):
                        place.is_exact = False
                case HostStep():
                    self._host_step(step.operator)
                case ProgramStep():
                    self._program_step(step)
        for number, name in enumerate(graph.outputs):
            self._copy(name, self._row_major(name, f"output{number}"), f"the output {name}")
        return self._code()

    # -- buffers -----------------------------------------------------------------------------------

    def _root(self, name: str) -> str:
        return self.views.get(name, name)

    def _row_major(self, name: str, pointer: str) -> _Place:
        kind = self.network.graph.types[name]
        view = GraphTensor(name, tuple(range(len(kind.shape))), kind.shape)
        layout = MainTensor.dense(name, kind.shape, kind.dtype, "temporary")
        return _Place(pointer, view, layout, kind.shape)

    def _place(self, view: GraphTensor, layout: MainTensor) -> _Place:
        """Return a buffer that is not in the workspace yet."""
        types = self.network.graph.types
        shape = types[view.name].shape if view.name in types else view.shape
        return _Place("", view, layout, shape)

    def _add(self, place: _Place, text: str) -> _Place:
        """Give a buffer its bytes in the workspace."""
        layout = place.layout
        kind = _element_type(layout)
        place.pointer = f"(({kind} *)(memory + {self.workspace}))"
        if layout.elements != math.prod(layout.shape):
            fill = _number(layout.fill)
            self.fills.append(
                f"  for (size_t n = 0; n < {layout.elements}; n++) {place.pointer}[n] = {fill};"
                f" /* {_comment(text)} */"
            )
        size = layout.elements * numpy_dtype(layout.dtype).itemsize
        self.workspace += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place

    def _constant(self, layout: MainTensor, array: Array) -> str:
        """Return the pointer to a constant in a layout."""
        contents = layout.buffer(array.astype(numpy_dtype(layout.dtype))).tobytes()
        digest = hashlib.sha256(contents).digest()
        if digest not in self.offsets:
            self.constants += bytes(-len(self.constants) % _ALIGNMENT)
            self.offsets[digest] = len(self.constants)
            self.constants += contents
        return f"((const {_element_type(layout)} *)(loaded + {self.offsets[digest]}))"

    def _readable(self, key: str, target: _Place, text: str) -> str:
        """Return the pointer to a tensor in a layout, to which it is copied if it is not there."""
        for place in self.places.get(key, []):
            if place.holds(target):
                return place.pointer
        self._copy(key, self._add(target, text), text)
        self.places[key].append(target)
        return target.pointer

    def _copy(self, name: str, target: _Place, text: str) -> None:
        key = self._root(name)
        if key not in self.places:
            raise LoweringError(f"{name} is read before it is written")
        source = self.places[key][0]
        first, second = self._position(source), self._position(target)
        self.body.append(
            f"  for (size_t n = 0; n < {math.prod(source.shape)}; n++) "
            f"{target.pointer}[{second}] = {source.pointer}[{first}]; /* {_comment(text)} */"
        )

    def _position(self, place: _Place) -> str:
        """Return the text of the position of element ``n``, in a function if it is none of n."""
        if np.array_equal(place.numbers(), np.arange(1, math.prod(place.shape) + 1)):
            return "n"
        layout = replace(place.layout, name="", role="")
        key = place.view, place.shape, layout.order, layout.before, layout.padded
        blocks = tuple(sorted(layout.blocks.items()))
        if (*key, blocks) not in self.positions:
            name = f"position{len(self.positions)}"
            self.positions[(*key, blocks)] = name
            lines = "\n".join(f"  {line}" for line in _position_lines(place))
            self.functions.append(f"static size_t {name}(size_t n) {{\n{lines}\n}}\n")
        return f"{self.positions[(*key, blocks)]}(n)"

    # -- steps -------------------------------------------------------------------------------------

    def _program_step(self, step: ProgramStep) -> None:
        label = step.name
        for number, program in enumerate(step.programs):
            self._host_parts(step, number)
            name = f"program{len([f for f in self.functions if f.startswith('/* program')])}"
            text = self.program_text(program, name)
            self.functions.append(f"/* program of {_comment(label)} */\n{text}")
            pointers: list[str] = []
            written: dict[str, _Place] = {}
            assert program.specification is not None
            for tensor, layout in program.tensors.items():
                constant = program.specification.constants.get(tensor)
                if constant is not None:
                    pointers.append(self._constant(layout, constant))
                    continue
                view = step.form.tensors.get(tensor)
                key = f"{label}.{tensor}" if view is None else self._root(view.name)
                shape = layout.shape
                view = view or GraphTensor(key, tuple(range(len(shape))), shape)
                place = self._place(view, layout)
                if tensor in program.specification.inputs:
                    pointers.append(self._readable(key, place, f"{label} reads {view.name}"))
                else:
                    written[key] = self._add(place, f"{label} writes {view.name}")
                    pointers.append(place.pointer)
            self.body.append(f"  {name}({', '.join(pointers)}); /* {_comment(label)} */")
            self.places |= {key: [place] for key, place in written.items()}
        self._host_parts(step, len(step.programs))

    def _host_parts(self, step: ProgramStep, after: int) -> None:
        for part in step.host:
            if part.after == after:
                self._host_part(step, part)

    def _host_part(self, step: ProgramStep, part: HostPart) -> None:
        label = step.name
        function = f"host{len(self.functions)}"
        text = specification_function(part.specification, function)
        self.functions.append(f"/* host, of {_comment(label)} */\n{text}")
        self._call(function, label, part.specification, step.form.tensors)

    def _host_step(self, operator: Operator) -> None:
        """Call the operator's statements in C, or a function that a person writes."""
        forms = operator_forms(operator, self.network.graph)
        function = f"host{len(self.functions)}"
        if isinstance(forms, NoForm) or forms[0].specification.deviation:
            self._external(operator)
            return
        specification = forms[0].specification
        try:
            text = specification_function(specification, function)
        except LoweringError:
            self._external(operator)
            return
        self.functions.append(f"/* host: {_comment(operator.name)} */\n{text}")
        self._call(function, operator.name, specification, forms[0].tensors)

    def _call(
        self,
        function: str,
        label: str,
        specification: Specification,
        tensors: Mapping[str, GraphTensor],
    ) -> None:
        """Call a function of row-major tensors."""
        pointers: list[str] = []
        written: dict[str, _Place] = {}
        for tensor, operand in specification.operands.items():
            layout = MainTensor.dense(tensor, operand.shape, operand.dtype, "temporary")
            if tensor in specification.constants:
                pointers.append(self._constant(layout, specification.constants[tensor]))
                continue
            view = tensors.get(tensor)
            key = f"{label}.{tensor}" if view is None else self._root(view.name)
            shape = operand.shape
            view = view or GraphTensor(key, tuple(range(len(shape))), shape)
            place = self._place(view, layout)
            if tensor in specification.inputs:
                pointers.append(self._readable(key, place, f"{label} reads {view.name}"))
            else:
                written[key] = self._add(place, f"{label} writes {view.name}")
                pointers.append(place.pointer)
        self.body.append(f"  {function}({', '.join(pointers)}); /* {_comment(label)} */")
        self.places |= {key: [place] for key, place in written.items()}

    def _external(self, operator: Operator) -> None:
        graph = self.network.graph
        name = f"host_{re.sub(r'[^A-Za-z0-9]', '_', operator.name)}"
        pointers: list[str] = []
        parameters: list[str] = []
        for number, tensor in enumerate(operator.inputs):
            target = self._row_major(tensor, "")
            parameters.append(f"const {_element_type(target.layout)} *input{number}")
            if graph.is_constant(tensor):
                pointers.append(self._constant(target.layout, graph.constants[tensor]))
            else:
                text = f"{operator.name} reads {tensor}"
                pointers.append(self._readable(self._root(tensor), target, text))
        for number, tensor in enumerate(operator.outputs):
            place = self._add(self._row_major(tensor, ""), f"{operator.name} writes {tensor}")
            parameters.append(f"{_element_type(place.layout)} *output{number}")
            pointers.append(place.pointer)
            self.places[tensor] = [place]
        shapes = [f"{n}: {graph.types[n]}" for n in (*operator.inputs, *operator.outputs)]
        label, types = operator.kind.label, "; ".join(shapes)
        self.externals.append(
            {
                "name": name,
                "operator": operator.name,
                "declaration": f"void {name}({', '.join(parameters)});",
                "computes": f"{label}: {operator.kind}",
                "tensors": types,
            }
        )
        self.body.append(f"  {name}({', '.join(pointers)});")

    # -- files -------------------------------------------------------------------------------------

    def _code(self) -> NetworkCode:
        graph = self.network.graph
        parameters = ["const void *constants"]
        for role, names in (("input", tuple(graph.inputs)), ("output", graph.outputs)):
            for number, name in enumerate(names):
                kind = _element_type(self._row_major(name, "").layout)
                qualifier = "const " if role == "input" else ""
                parameters.append(f"{qualifier}{kind} *{role}{number}")
        call = f"void network_run({', '.join([*parameters, 'void *workspace'])})"
        prepare = "void network_prepare(void *workspace)"
        header = [
            "#ifndef NETWORK_H",
            "#define NETWORK_H",
            "#include <stdint.h>",
            f"#define NETWORK_WORKSPACE_BYTES {self.workspace}",
            f"#define NETWORK_CONSTANTS_BYTES {len(self.constants)}",
            f"/* Buffers are aligned to {_ALIGNMENT} bytes, the network's tensors row-major. */",
            "/* Fills the margins of tensors, once before the first run. */",
            f"{prepare};",
            "/* Runs the network; constants are the bytes of constants.bin. */",
            f"{call};",
            *map(_declaration, self.externals),
            "#endif",
        ]
        source = [
            "/* Compile as C11, without contractions (-ffp-contract=off). */",
            "#include <math.h>",
            '#include "network.h"',
            preamble(self.network.machine),
            without_warnings(NUMBERS),
            *self.functions,
            f"{prepare} {{",
            "  char *memory = workspace;",
            "  (void)memory;",
            *self.fills,
            "}\n",
            f"{call} {{",
            "  const char *loaded = constants;",
            "  char *memory = workspace;",
            "  (void)loaded, (void)memory;",
            *self.body,
            "}",
        ]
        text = "\n".join(source) + "\n"
        document = {
            "workspace_bytes": self.workspace,
            "constants_bytes": len(self.constants),
            "inputs": [{"name": n, **_type(graph.types[n])} for n in graph.inputs],
            "outputs": [{"name": n, **_type(graph.types[n])} for n in graph.outputs],
            "functions_to_write": self.externals,
        }
        return NetworkCode(text, "\n".join(header) + "\n", bytes(self.constants), document)


def _declaration(external: Mapping[str, str]) -> str:
    texts = (external["operator"], external["computes"], external["tensors"])
    comment = "\n   ".join(map(_comment, texts))
    return f"/* Yours to write, on row-major tensors: {comment} */\n{external['declaration']}"


def _type(kind: Any) -> dict[str, Any]:
    return {"dtype": kind.dtype, "shape": list(kind.shape)}


def _element_type(layout: MainTensor) -> str:
    if dtype_info(layout.dtype).storage_bits < 8:
        raise LoweringError(f"{layout.name} is {layout.dtype}: the C of networks takes whole bytes")
    return c_type(layout.dtype)


def _comment(text: object) -> str:
    """Return a text that ends no comment."""
    return " ".join(str(text).split()).replace("*/", "* /")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _position_lines(place: _Place) -> Iterator[str]:
    """Yield the statements of a function from an element's row-major number to its position."""
    rest = math.prod(place.shape)
    for dimension, size in enumerate(place.shape):
        rest //= size
        yield f"size_t g{dimension} = n / {rest} % {size};"
    flat = "0"
    for dimension in place.view.permutation:
        flat = f"({flat}) * {place.shape[dimension]} + g{dimension}"
    yield f"size_t flat = {flat};"
    layout = place.layout
    rest = math.prod(layout.shape)
    for dimension, size in enumerate(layout.shape):
        rest //= size
        yield f"size_t d{dimension} = flat / {rest} % {size} + {layout.before[dimension]};"
    terms: list[str] = []
    placed: set[int] = set()
    for dimension, stride in zip(layout.order, layout.strides, strict=True):
        text, block = f"d{dimension}", layout.blocks.get(dimension)
        if block is not None:
            text += f" % {block}" if dimension in placed else f" / {block}"
        placed.add(dimension)
        terms.append(f"({text}) * {stride}")
    yield f"return {' + '.join(terms) or '0'};"

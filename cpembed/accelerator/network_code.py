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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpembed.accelerator.graph_layouts import GraphLayout
from cpembed.accelerator.host_code import NUMBERS, specification_function
from cpembed.accelerator.layouts import main_digits
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
from cpembed.accelerator.operators.forms import GraphTensor, NoForm, OperatorForm
from cpembed.accelerator.program import MainTensor, Program
from cpembed.accelerator.specification import Array
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
    view: GraphLayout
    is_exact: bool = True

    @property
    def layout(self) -> MainTensor:
        return self.view.layout

    @property
    def elements(self) -> int:
        """Number of the tensor's elements, without margins."""
        return math.prod(self.layout.shape)


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
        return _Place(pointer, GraphLayout.row_major(name, self.network.graph.types[name]))

    def _add(self, place: _Place, text: str) -> _Place:
        """Give a buffer its bytes in the workspace."""
        layout = place.layout
        kind = _element_type(layout)
        place.pointer = f"(({kind} *)(memory + {self.workspace}))"
        if layout.elements != place.elements:
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
            if place.is_exact and place.view.has_bytes_of(target.view):
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
            f"  for (size_t n = 0; n < {source.elements}; n++) "
            f"{target.pointer}[{second}] = {source.pointer}[{first}]; /* {_comment(text)} */"
        )

    def _position(self, place: _Place) -> str:
        """Return the text of the position of element ``n``, in a function if it is none of n."""
        if np.array_equal(place.view.numbers(), np.arange(1, place.elements + 1)):
            return "n"
        key = *place.view.key, place.layout.before, place.layout.padded
        if key not in self.positions:
            name = f"position{len(self.positions)}"
            self.positions[key] = name
            lines = "\n".join(f"  {line}" for line in _position_lines(place.view))
            self.functions.append(f"static size_t {name}(size_t n) {{\n{lines}\n}}\n")
        return f"{self.positions[key]}(n)"

    # -- steps -------------------------------------------------------------------------------------

    def _program_step(self, step: ProgramStep) -> None:
        label = step.name
        for number, program in enumerate(step.programs):
            self._host_parts(step, number)
            name = f"program{len([f for f in self.functions if f.startswith('/* program')])}"
            text = self.program_text(program, name)
            self.functions.append(f"/* program of {_comment(label)} */\n{text}")
            assert program.specification is not None
            form = OperatorForm(program.specification, step.form.tensors)
            self._call(name, label, form, program.tensors)
        self._host_parts(step, len(step.programs))

    def _host_parts(self, step: ProgramStep, after: int) -> None:
        for part in step.host:
            if part.after == after:
                form = OperatorForm(part.specification, step.form.tensors)
                self._call_host(form, step.name, f"host, of {_comment(step.name)}")

    def _call_host(self, form: OperatorForm, label: str, comment: str) -> None:
        """Call statements in C, on row-major tensors."""
        function = f"host{len(self.functions)}"
        text = specification_function(form.specification, function)
        self.functions.append(f"/* {comment} */\n{text}")
        tensors = {
            name: MainTensor.dense(name, operand.shape, operand.dtype, "temporary")
            for name, operand in form.specification.operands.items()
        }
        self._call(function, label, form, tensors)

    def _host_step(self, operator: Operator) -> None:
        """Call the operator's statements in C, or a function that a person writes."""
        forms = operator_forms(operator, self.network.graph)
        if isinstance(forms, NoForm) or forms[0].specification.deviation:
            self._external(operator)
            return
        try:
            self._call_host(forms[0], operator.name, f"host: {_comment(operator.name)}")
        except LoweringError:
            self._external(operator)

    def _call(
        self,
        function: str,
        label: str,
        form: OperatorForm,
        tensors: Mapping[str, MainTensor],
    ) -> None:
        """Call a function of the tensors of a form, in these layouts."""
        specification = form.specification
        pointers: list[str] = []
        written: dict[str, _Place] = {}
        for name, layout in tensors.items():
            if name in specification.constants:
                pointers.append(self._constant(layout, specification.constants[name]))
                continue
            view = form.tensors.get(name)
            key = f"{label}.{name}" if view is None else self._root(view.name)
            view = view or GraphTensor.unchanged(key, layout.shape)
            place = _Place("", GraphLayout(view, layout))
            if name in specification.inputs:
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


def _position_lines(view: GraphLayout) -> Iterator[str]:
    """Yield the statements of a function from an element's row-major number to its position."""
    shape, layout = view.tensor.graph_shape, view.layout
    rest = math.prod(shape)
    for dimension, size in enumerate(shape):
        rest //= size
        yield f"size_t g{dimension} = n / {rest} % {size};"
    flat = "0"
    for dimension in view.tensor.permutation:
        flat = f"({flat}) * {shape[dimension]} + g{dimension}"
    yield f"size_t flat = {flat};"
    rest = math.prod(layout.shape)
    for dimension, size in enumerate(layout.shape):
        rest //= size
        yield f"size_t d{dimension} = flat / {rest} % {size} + {layout.before[dimension]};"
    terms: list[str] = []
    for digit in main_digits(layout):
        text = f"d{digit.dimension}"
        if digit.modulus is not None:
            text += f" % {digit.modulus}"
        elif layout.blocks.get(digit.dimension) is not None:
            text += f" / {digit.divisor}"
        terms.append(f"({text}) * {digit.stride}")
    yield f"return {' + '.join(terms) or '0'};"

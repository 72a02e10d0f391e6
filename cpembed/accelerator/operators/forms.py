"""Forms of an operator: specifications, and which tensors of the graph they are of."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cpembed.accelerator.specification import Array, Specification, Statement
from cpembed.graph.graph import Graph, Operator
from cpembed.ir.parser import parse_computation


@dataclass(frozen=True)
class GraphTensor:
    """Tensor of a graph as a specification has it.

    The specification's array is the graph's array ``.transpose(permutation).reshape(shape)``.

    Attributes
    ----------
    name : str
        Name in the graph.
    permutation : tuple of int
        Dimension of the graph's array at each place.
    shape, graph_shape : tuple of int
        Shape in the specification, and in the graph.
    """

    name: str
    permutation: tuple[int, ...]
    shape: tuple[int, ...]
    graph_shape: tuple[int, ...]

    @staticmethod
    def unchanged(name: str, shape: tuple[int, ...]) -> GraphTensor:
        """Return a tensor that the specification has as the graph has it."""
        return GraphTensor(name, tuple(range(len(shape))), shape, shape)

    def logical(self, array: Array) -> Array:
        """Return a graph's array in the shape of the specification."""
        return np.ascontiguousarray(array.transpose(self.permutation)).reshape(self.shape)

    def graph_array(self, array: Array) -> Array:
        """Return a specification's array in the shape that the graph has."""
        moved = array.reshape([self.graph_shape[d] for d in self.permutation])
        return np.ascontiguousarray(moved.transpose(np.argsort(self.permutation)))


@dataclass(frozen=True)
class OperatorForm:
    """One specification of an operator.

    Attributes
    ----------
    specification : Specification
    tensors : mapping of str to GraphTensor
        Tensor of the graph for each input and output of the specification.
    """

    specification: Specification
    tensors: Mapping[str, GraphTensor]

    @property
    def canonical(self) -> OperatorForm:
        """The form with tensors named by their roles, so that equal operators are equal."""
        names = self.specification.canonical_names()
        tensors = {names[name]: tensor for name, tensor in self.tensors.items()}
        return OperatorForm(self.specification.renamed(names), tensors)

    @property
    def signature(self) -> Hashable:
        """All that the plan of a canonical form depends on, without its floating-point numbers."""
        specification = self.specification
        statements = tuple(
            (
                _FLOAT.sub("#", str(statement.computation.statement)),
                statement.accumulates,
                tuple(statement.computation.extents.items()),
                statement.computation.operands,
            )
            for statement in specification.statements
        )
        return (
            statements, specification.inputs, specification.outputs, tuple(specification.constants)
        )  # fmt: skip


_FLOAT = re.compile(r"\d+\.\d*(e[-+]?\d+)?")


@dataclass(frozen=True)
class NoForm:
    """Operator without a specification, and the reason in one line."""

    reason: str

    def __bool__(self) -> bool:
        return False


Forms = tuple[OperatorForm, ...] | NoForm


@dataclass
class FormBuilder:
    """A form in the making: tensors with their shapes and types, and statements in their order."""

    operator: Operator
    graph: Graph
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])
    dtypes: dict[str, str] = field(default_factory=dict[str, str])
    tensors: dict[str, GraphTensor] = field(default_factory=dict[str, GraphTensor])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    statements: list[Statement] = field(default_factory=list[Statement])

    def tensor(
        self,
        name: str,
        permutation: Sequence[int] | None = None,
        shape: Sequence[int] | None = None,
    ) -> str:
        """Add a tensor of the graph, and return its name in the specification.

        Parameters
        ----------
        name : str
            Name in the graph.
        permutation : sequence of int, optional
            Order of the graph's dimensions; by default their own.
        shape : sequence of int, optional
            Shape in the specification; by default that of the permuted dimensions.
        """
        kind = self.graph.types[name]
        order = tuple(range(len(kind.shape))) if permutation is None else tuple(permutation)
        form = tuple(shape) if shape is not None else tuple(kind.shape[d] for d in order)
        view = GraphTensor(name, order, form, kind.shape)
        label = name
        # The same tensor in two shapes has two names.
        while label in self.shapes and self.tensors.get(label) != view:
            label += "'"
        self.shapes[label], self.dtypes[label] = form, kind.dtype
        if name in self.graph.constants:
            self.constants[label] = view.logical(self.graph.constants[name])
        else:
            self.tensors[label] = view
        return label

    def constant(self, suffix: str, array: Array) -> str:
        """Add a constant, and return its name."""
        name = self.temporary(suffix, array.shape, str(array.dtype))
        self.constants[name] = array
        return name

    def temporary(self, suffix: str, shape: Sequence[int], dtype: str) -> str:
        """Add a tensor that only the specification has, and return its name."""
        name = f"{self.operator.output}.{suffix}"
        self.shapes[name], self.dtypes[name] = tuple(shape), dtype
        return name

    def add(
        self,
        text: str,
        extents: Mapping[str, int],
        names: Mapping[str, str],
        *,
        accumulates: bool = False,
        outside: Collection[str] = (),
    ) -> None:
        """Add a statement.

        Parameters
        ----------
        text : str
            The statement over placeholders.
        extents : mapping of str to int
            Extent of each axis.
        names : mapping of str to str
            Name of the tensor that each placeholder is.
        accumulates : bool, default False
            True if it goes on from an earlier statement.
        outside : collection of str
            Placeholders that are zero outside their shape.
        """
        used = {p: n for p, n in names.items() if f"{p}[" in text}
        computation = parse_computation(
            text,
            extents,
            name=self.operator.name,
            dtypes={p: self.dtypes[n] for p, n in used.items()},
            shapes={p: self.shapes[n] for p, n in used.items()},
            zero_outside=tuple(p for p in outside if p in used),
            takes_constants=True,
        )
        self.statements.append(Statement(computation.with_names(used), accumulates))

    def form(self, label: str, deviation: str = "") -> OperatorForm:
        """Return the form; ``label`` says which of the operator's forms it is."""
        read = {o.tensor for s in self.statements for o in s.reads}
        written = {s.output.tensor for s in self.statements}
        outputs = tuple(n for n in self.tensors if n in written)
        specification = Specification(
            f"{self.operator.name}: {label}" if label else self.operator.name,
            tuple(self.statements),
            tuple(n for n in self.tensors if n in read and n not in written),
            outputs,
            {n: a for n, a in self.constants.items() if n in read},
            deviation,
        )
        used = {*specification.inputs, *outputs}
        return OperatorForm(
            specification, {n: view for n, view in self.tensors.items() if n in used}
        )


def number(value: float) -> str:
    """Return the text of a number in the expression language."""
    text = repr(float(value))
    return f"(0 - {text[1:]})" if text.startswith("-") else text


def integer_text(value: int) -> str:
    """Return the text of an integer in the expression language."""
    return str(value) if value >= 0 else f"(0 - {-value})"

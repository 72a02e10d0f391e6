"""Move work out of loops: operators that no step changes, and products of all steps as one.

A product of a slice and constant weights does not depend on the states. As one product of all
steps it reads the weights once, and has enough rows for an instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cpembed.graph import kinds
from cpembed.graph.graph import Array, Graph, Operator, unused_name
from cpembed.graph.kinds import Elementwise, Kind, Product, TensorType
from cpembed.graph.kinds.base import axis_of
from cpembed.graph.loop import Loop
from cpembed.ir.computation import Computation, Operand


def hoist(graph: Graph) -> Graph:
    """Return a graph with the same results, and less work in its loops.

    Invariant tensors that are constants become constants of the body. Operators of invariant
    tensors are executed before the loop; products of slices and invariant tensors, with the
    operators whose results they read, for all steps at once.
    """
    operators: list[Operator] = []
    constants: dict[str, Array] = {}
    names = {*graph.types}
    for operator in graph.operators:
        if isinstance(operator.kind, Loop):
            hoisting = _Hoisting(graph, operator, names)
            operators += hoisting.result()
            constants |= hoisting.constants
        else:
            operators.append(operator)
    return graph if tuple(operators) == graph.operators else graph.with_operators(
        operators, constants
    )  # fmt: skip


@dataclass(frozen=True)
class _Outside:
    """Tensor of a body that is computed outside of the loop.

    Attributes
    ----------
    tensor : str
        Tensor of the graph around the loop.
    backwards : bool, optional
        None if it is the same in every step; otherwise it has a slice for each step, and True
        means that the first step reads the last one.
    """

    tensor: str
    backwards: bool | None = None


@dataclass
class _Hoisting:
    """Changes of one loop; ``names`` are those of tensors that are in use outside."""

    graph: Graph
    operator: Operator
    names: set[str]
    before: list[Operator] = field(default_factory=list[Operator])
    constants: dict[str, Array] = field(default_factory=dict[str, Array])

    def result(self) -> tuple[Operator, ...]:
        """Return the operators that replace the loop, which is the last of them."""
        kind = self.operator.kind
        assert isinstance(kind, Loop)
        # Inner loops first: what leaves one may leave this one too.
        body = hoist(kind.body)
        _, _, scanned, invariant = kind.split_inputs(self.operator.inputs)
        _, _, slices, names = kind.body_inputs
        pairs = list(zip(names, invariant, strict=True))
        absorbed = {a: self.graph.constants[b] for a, b in pairs if self.graph.is_constant(b)}
        outside = {name: _Outside(tensor) for name, tensor in pairs if name not in absorbed}
        outside |= {
            name: _Outside(tensor, backwards)
            for name, tensor, backwards in zip(slices, scanned, kind.scanned, strict=True)
        }
        body = replace(
            body,
            constants={**body.constants, **absorbed},
            inputs={name: kind for name, kind in body.inputs.items() if name not in absorbed},
        )
        moved = self._moved(body, outside, kind.steps)
        if not moved and not absorbed and body.operators == kind.body.operators:
            return (self.operator,)
        return (*self.before, self._smaller(kind, body, {**outside, **moved}))

    def _moved(
        self, body: Graph, outside: dict[str, _Outside], steps: int | None
    ) -> dict[str, _Outside]:
        """Move operators before the loop; return their outputs by the body's names."""
        moved: dict[str, _Outside] = {}
        needed = self._feeding_products(body, outside)
        for operator in body.operators:
            available = {**outside, **moved}
            places = [available.get(name) for name in operator.inputs]
            stepwise = {p.backwards for p in places if p is not None and p.backwards is not None}
            if any(p is None and not body.is_constant(n)
                   for p, n in zip(places, operator.inputs, strict=True)):  # fmt: skip
                continue
            if not stepwise:
                if not any(places):
                    continue
                outputs = [self._fresh(name) for name in operator.outputs]
                inputs = [self._input(body, n, p)
                          for n, p in zip(operator.inputs, places, strict=True)]  # fmt: skip
                self.before.append(replace(operator, inputs=tuple(inputs), outputs=tuple(outputs)))
                moved |= zip(operator.outputs, map(_Outside, outputs), strict=True)
            elif operator.output in needed and len(stepwise) == 1 and steps is not None:
                result = self._all_steps(body, operator, places, steps)
                if result is not None:
                    moved[operator.output] = _Outside(result, stepwise.pop())
        return moved

    def _feeding_products(self, body: Graph, outside: dict[str, _Outside]) -> set[str]:
        """Return the tensors that products of slices read, directly or not, and their results."""
        states = {*body.inputs} - {*outside}
        varying = set(states)
        products: list[Operator] = []
        for operator in body.operators:
            if varying.intersection(operator.inputs):
                varying.update(operator.outputs)
            elif isinstance(operator.kind, Product):
                products.append(operator)
            elif len(operator.outputs) != 1:
                varying.update(operator.outputs)
        needed: set[str] = {operator.output for operator in products}
        for operator in reversed(body.operators):
            if needed.intersection(operator.outputs):
                needed.update(operator.inputs)
        return needed

    def _all_steps(
        self, body: Graph, operator: Operator, places: Sequence[_Outside | None], steps: int
    ) -> str | None:
        """Execute an operator for all steps; return the result, None where that cannot be done."""
        stacked = [place is not None and place.backwards is not None for place in places]
        types = [body.types[name] for name in operator.inputs]
        result = body.types[operator.output]
        kind = _for_all_steps(operator.kind, stacked, types, result, steps)
        if kind is None:
            return None
        inputs: list[str] = []
        for name, place, is_stacked, type_ in zip(
            operator.inputs, places, stacked, types, strict=True
        ):
            tensor = self._input(body, name, place)
            # Inputs broadcast from the last axis, so that the steps have to be the first of all.
            missing = len(result.shape) - len(type_.shape)
            if is_stacked and isinstance(kind, Elementwise) and missing:
                shape = (steps, *(1,) * missing, *type_.shape)
                tensor = self._add(operator, kinds.Reshape(shape), [tensor], f"{name}/steps")
            inputs.append(tensor)
        return self._add(operator, kind, inputs, operator.output)

    def _add(self, operator: Operator, kind: Kind, inputs: Sequence[str], name: str) -> str:
        output = self._fresh(name)
        self.before.append(Operator(operator.name, kind, tuple(inputs), (output,)))
        return output

    def _fresh(self, name: str) -> str:
        name = unused_name(f"{self.operator.name}/{name}", self.names, ".")
        self.names.add(name)
        return name

    def _input(self, body: Graph, name: str, place: _Outside | None) -> str:
        """Return the tensor outside that an operator reads in place of one of the body."""
        if place is not None:
            return place.tensor
        fresh = self._fresh(name)
        self.constants[fresh] = body.constants[name]
        return fresh

    def _smaller(self, kind: Loop, body: Graph, outside: dict[str, _Outside]) -> Operator:
        """Return the loop without the operators that are executed outside."""
        controls, states, _, _ = kind.split_inputs(self.operator.inputs)
        numbers, state_names, _, _ = kind.body_inputs
        operators = [o for o in body.operators if not {*o.outputs} & {*outside}]
        read = {name for o in operators for name in o.inputs} | {*body.outputs}
        scanned = {n: p for n, p in outside.items() if p.backwards is not None and n in read}
        invariant = {n: p for n, p in outside.items() if p.backwards is None and n in read}
        names = (*numbers, *state_names, *scanned, *invariant)
        smaller = Graph(
            body.name,
            {name: body.types[name] for name in names},
            body.outputs,
            {name: array for name, array in body.constants.items() if name in read},
            tuple(operators),
        )
        directions = tuple(bool(place.backwards) for place in scanned.values())
        tensors = [place.tensor for place in (*scanned.values(), *invariant.values())]
        return replace(
            self.operator,
            kind=replace(kind, body=smaller, scanned=directions),
            inputs=(*controls, *states, *tensors),
        )


def _for_all_steps(
    kind: Kind,
    stacked: Sequence[bool],
    types: Sequence[TensorType],
    result: TensorType,
    steps: int,
) -> Kind | None:
    """Return the kind that computes all steps, whose axis is the first; None if there is none.

    Parameters
    ----------
    kind : Kind
        Kind of one step.
    stacked : sequence of bool
        Inputs that have a slice for each step.
    types : sequence of TensorType
        Types of the inputs in one step.
    result : TensorType
        Type of the only output in one step.
    steps : int
    """
    match kind:
        case Elementwise() | kinds.Table():
            return kind
        case kinds.Reshape(shape):
            return kinds.Reshape((steps, *shape))
        case kinds.Transpose(order):
            return kinds.Transpose((0, *(axis + 1 for axis in order)))
        case kinds.Slice(starts, stops, strides):
            return kinds.Slice((0, *starts), (steps, *stops), (1, *strides))
        case kinds.Quantize() | kinds.Dequantize():
            if len(kind.scale) == len(kind.zero_point) == 1:
                return kind
            return replace(kind, axis=axis_of(kind.axis, len(types[0].shape)) + 1)
        case Product() if kind.epilogue is None and stacked[0] and not any(stacked[1:]):
            computation = _with_more_rows(kind.computation, steps)
            if computation is None:
                return None
            return replace(kind, computation=computation, shape=(steps, *result.shape))
        case _:
            return None


def _with_more_rows(computation: Computation, steps: int) -> Computation | None:
    """Return a product of ``steps`` times the rows; None if the first axis is no row."""
    first, second = computation.inputs
    axes = [computation.access(o.name).index[:1] for o in (first, computation.output)]
    rows = {index[0].single_iterator for index in axes if index}
    row = rows.pop() if len(rows) == 1 and all(axes) else None
    extent = computation.extents.get(row or "")
    used = {name for index in computation.access(second.name).index for name in index.iterators}
    later = {
        name
        for operand in (first, computation.output)
        for index in computation.access(operand.name).index[1:]
        for name in index.iterators
    }
    if row is None or row in used | later or extent != first.shape[0]:
        return None

    def longer(operand: Operand) -> Operand:
        return replace(operand, shape=(steps * operand.shape[0], *operand.shape[1:]))

    return replace(
        computation,
        axes=tuple(
            replace(axis, extent=steps * axis.extent) if axis.name == row else axis
            for axis in computation.axes
        ),
        inputs=(longer(first), second),
        outputs=(longer(computation.output),),
    )

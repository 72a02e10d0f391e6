"""One program of the plans of several operators, whose tensors may stay on chip between them.

The statements of the plans are one specification, so that the proof follows values through the rows
in which one part of the program writes a tensor and a later one reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpembed.accelerator.cost import ProgramCost, program_cost
from cpembed.accelerator.lowering import OperatorPlan
from cpembed.accelerator.operators.forms import GraphTensor, OperatorForm
from cpembed.accelerator.pipeline import pipelined_cycles
from cpembed.accelerator.program import Array, Content, Issue, Loop, MainTensor, Node, Program
from cpembed.accelerator.reshaped import index_in
from cpembed.accelerator.specification import Specification, Statement
from cpembed.ir.computation import Access, Computation, Operand, changed_accesses
from cpembed.ir.index import IndexExpr


@dataclass(frozen=True)
class Part:
    """Plan as a part of a longer program.

    Attributes
    ----------
    plan : OperatorPlan
    names : mapping of str to str
        Name in the longer program of each tensor of the plan's specification.
    shapes : mapping of str to tuple of int
        Shape there of each of those tensors.
    base_rows : mapping of str to int
        First row of its buffers in each memory.
    after : tuple of Node
        Copies and fills that follow, of tensors by their names in the longer program.
    """

    plan: OperatorPlan
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    base_rows: Mapping[str, int] = field(default_factory=dict[str, int])
    after: tuple[Node, ...] = ()

    @property
    def naming(self) -> _Naming:
        """Names and shapes of the longer program for those of the plan."""
        operands = self.plan.problem.specification.operands
        return _Naming(self.names, {n: (operands[n].shape, s) for n, s in self.shapes.items()})

    @property
    def naming_after(self) -> _Naming:
        """Shapes of the longer program for those of the plan, of tensors by its names."""
        return _Naming({}, {self.names[n]: pair for n, pair in self.naming.shapes.items()})

    @property
    def statements(self) -> Iterator[Statement]:
        """Statements of the plan with the names and shapes of the longer program."""
        naming = self.naming
        for statement in self.plan.problem.specification.statements:
            yield replace(statement, computation=naming.computation(statement.computation))


def in_shape(tensor: MainTensor, shape: tuple[int, ...]) -> MainTensor:
    """Return a tensor in main memory in another shape, in which it has no margins."""
    if tensor.shape == shape:
        return tensor
    return MainTensor.dense(tensor.name, shape, tensor.dtype, tensor.role)


@dataclass(frozen=True)
class _Naming:
    """New names of tensors, and the shapes that they have and that they get by their old names."""

    names: Mapping[str, str]
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]

    def index(self, name: str, index: tuple[IndexExpr, ...]) -> tuple[IndexExpr, ...]:
        """Return the index in the new shape of a tensor."""
        shape, coarse = self.shapes.get(name, ((), ()))
        return index if shape == coarse else index_in(index, shape, coarse)

    def computation(self, computation: Computation) -> Computation:
        """Return a computation on the tensors by their new names, in their new shapes."""

        def reshaped(operand: Operand) -> Operand:
            shape, coarse = self.shapes.get(operand.name, ((), ()))
            return operand if shape == coarse else replace(operand, shape=coarse)

        def accessed(access: Access) -> Access:
            return replace(access, index=self.index(access.operand, access.index))

        changed = replace(
            computation,
            inputs=tuple(map(reshaped, computation.inputs)),
            outputs=tuple(map(reshaped, computation.outputs)),
            statements=changed_accesses(computation.statements, accessed),
        )
        return changed.with_names(self.names)

    def node(self, node: Node, first: int) -> Node:
        """Rename the tensors of a node, and count its statements from ``first`` on."""
        if isinstance(node, Loop):
            return replace(node, body=tuple(self.node(n, first) for n in node.body))
        assert isinstance(node, Issue)
        meaning = node.meaning
        if meaning is not None:
            meaning = replace(meaning, statement=meaning.statement + first)
        return replace(
            node,
            operands={
                k: replace(a, tensor=self.names.get(a.tensor, a.tensor))
                for k, a in node.operands.items()
            },
            contents={
                k: Content(self.names.get(c.tensor, c.tensor), self.index(c.tensor, c.index))
                for k, c in node.contents.items()
            },
            meaning=meaning,
        )


def joined(
    parts: Sequence[Part],
    name: str,
    needed: Collection[str],
    layouts: Mapping[str, MainTensor],
    tensors: Mapping[str, GraphTensor],
) -> tuple[OperatorForm, Program, ProgramCost]:
    """Return the program of some plans, one after the other, with its form and its cost.

    Parameters
    ----------
    parts : sequence of Part
        The plans, all of one machine.
    name : str
        Name of the program.
    needed : collection of str
        Tensors that are results.
    layouts : mapping of str to MainTensor
        Layouts in main memory of tensors that copies between the parts move there.
    tensors : mapping of str to GraphTensor
        Tensor of the graph of each tensor that the graph has.
    """
    machine = parts[0].plan.machine
    specification = _specification(parts, name, needed)
    body: list[Node] = []
    main: dict[str, MainTensor] = {}
    regions: list[tuple[str, int]] = []
    first = 0
    for part in parts:
        program, of_part = part.plan.placed(part.base_rows)
        body += (part.naming.node(node, first) for node in program.body)
        body += (part.naming_after.node(node, 0) for node in part.after)
        main |= {part.names[n]: in_shape(t, part.shapes[n]) for n, t in program.tensors.items()}
        regions += of_part
        first += len(part.plan.problem.specification.statements)
    main |= layouts
    roles, names = specification.roles, specification.canonical_names()
    specification = specification.renamed(names)
    program = Program(
        name,
        machine,
        {
            names[n]: replace(t, name=names[n], role=roles.get(n, "temporary"))
            for n, t in main.items()
        },
        tuple(_Naming(names, {}).node(node, 0) for node in body),
        specification,
    )
    form = OperatorForm(specification, {names[n]: t for n, t in tensors.items() if n in names})
    return form, program, program_cost(program, pipelined_cycles(program, regions))


def _specification(parts: Sequence[Part], name: str, needed: Collection[str]) -> Specification:
    statements = tuple(s for part in parts for s in part.statements)
    constants: dict[str, Array] = {}
    deviations: list[str] = []
    for part in parts:
        specification = part.plan.problem.specification
        constants |= {part.names[n]: array for n, array in specification.constants.items()}
        deviations.append(specification.deviation)
    written = dict.fromkeys(s.output.tensor for s in statements)
    inputs = [o.tensor for s in statements for o in s.reads]
    return Specification(
        name,
        statements,
        tuple(n for n in dict.fromkeys(inputs) if n not in written and n not in constants),
        tuple(n for n in written if n in needed),
        constants,
        "; ".join(dict.fromkeys(filter(None, deviations))),
    )

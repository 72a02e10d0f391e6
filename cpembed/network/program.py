"""A planned network as a program of calls: buffers for its tensors, kernels, constants packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.epilogue import BIAS, SCALE, Epilogue, channel_axes
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory
from cpembed.errors import InvariantError
from cpembed.export.program import Buffer, Call, Program, Role
from cpembed.graph.graph import Operator
from cpembed.graph.kinds import Product
from cpembed.ir.computation import Computation
from cpembed.network.candidate_layouts import residual_of
from cpembed.network.kernel_cache import Cache, Progress, compiled, digest_of, features, symbol_of
from cpembed.network.layout import Layout
from cpembed.network.layout_problem import ports_of
from cpembed.network.operators import Placed, conversion_plan, generated_plan
from cpembed.network.operators.values import memory_of, stored
from cpembed.network.physical_product import laid_out
from cpembed.network.plan import NetworkPlan
from cpembed.network.product_kernels import recorded

Array = NDArray[Any]


@dataclass(frozen=True)
class NetworkProgram:
    """``program`` of a network; ``calls``: which of its calls, a first one and an end, an operator
    or a conversion is; ``tensors``: the buffer of each tensor in the layout in which it is
    written; ``results``: the buffer of each output of the network."""

    program: Program
    calls: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, str]
    results: Mapping[str, str]


def network_program(
    plan: NetworkPlan, name: str, cache: Cache, progress: Progress
) -> NetworkProgram:
    """Everything that the network's library is made of.

    Raises :class:`~cpembed.errors.LoweringError` where a kernel cannot be compiled.
    """
    made = _Maker(plan)
    made.make()
    kernels = compiled(made.plans, cache, progress)
    program = Program(
        name,
        made.in_order(),
        kernels,
        (),
        tuple(made.calls),
        features(asked_features(plan)),
        threads=plan.threads,
    )
    return NetworkProgram(program, made.ranges, made.tensors, made.results)


def asked_features(plan: NetworkPlan) -> Iterator[str]:
    """The processor features that the kernels' instructions are."""
    for execution in plan.executions.values():
        if execution.layer is not None and execution.layer.spec is not None:
            yield from execution.layer.spec.cpu_features


@dataclass
class _Maker:
    """Collects buffers and calls."""

    plan: NetworkPlan
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    plans: dict[str, KernelPlan] = field(default_factory=dict[str, KernelPlan])
    calls: list[Call] = field(default_factory=list[Call])
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    tensors: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[tuple[str, Layout], str] = field(default_factory=dict[tuple[str, Layout], str])
    results: dict[str, str] = field(default_factory=dict[str, str])

    def make(self) -> None:
        graph = self.plan.graph
        for name, kind in graph.inputs.items():
            self._add(name, self.plan.written[name], Role.INPUT, kind.shape)
            self._convert(name)
        for operator in graph.operators:
            first = len(self.calls)
            if self.plan.execution(operator).aliases:
                self._alias(operator)
            else:
                self._outputs(operator)
                if isinstance(operator.kind, Product):
                    self._product(operator, operator.kind)
                else:
                    self._generated(operator)
            self.ranges[operator.name] = first, len(self.calls)
            for name in operator.outputs:
                self._convert(name)
        self._return_others()

    def in_order(self) -> tuple[Buffer, ...]:
        """The buffers: inputs and outputs as the network has them, then the rest."""
        graph = self.plan.graph
        first = [self.buffers[name] for name in graph.inputs]
        first += [self.buffers[self.results[name]] for name in dict.fromkeys(graph.outputs)]
        rest = [b for b in self.buffers.values() if b.role not in (Role.INPUT, Role.OUTPUT)]
        return (*first, *rest)

    # ------------------------------------------------------------------------------- buffers

    def _add(self, tensor: str, layout: Layout, role: Role, shape: tuple[int, ...] = ()) -> str:
        """A buffer for a tensor in a layout."""
        kind = self.plan.graph.types[tensor]
        fill = self.plan.ways.layouts.fills.get(tensor, 0) if layout.has_halo else None
        name = tensor if role is not Role.WORKSPACE else self._unused(f"{tensor}@{layout}")
        buffer = Buffer(name, stored(kind.dtype), layout.elements, role, shape, fill=fill)
        self.buffers[name] = buffer
        self.places[tensor, layout] = name
        self.tensors.setdefault(tensor, name)
        return name

    def _unused(self, text: str) -> str:
        """A name that no buffer has, and no input or output of the network will have."""
        taken = {*self.plan.graph.inputs, *self.plan.graph.outputs}
        name, number = text, 2
        while name in taken or name in self.buffers:
            name, number = f"{text} ({number})", number + 1
        return name

    def _outputs(self, operator: Operator) -> None:
        for name in operator.outputs:
            self._output(name, self.plan.written[name])

    def _output(self, name: str, layout: Layout) -> str:
        graph = self.plan.graph
        plain = layout.same_memory(Layout.plain(layout.shape))
        ends = name in graph.outputs and not graph.readers[name]
        if ends and plain and name not in self.results:
            self.results[name] = name
            return self._add(name, layout, Role.OUTPUT, layout.shape)
        return self._add(name, layout, Role.WORKSPACE)

    def _place(self, tensor: str, layout: Layout) -> str:
        """The buffer of a tensor in a layout, or in another that is the same memory."""
        found = self.places.get((tensor, layout))
        if found is not None:
            return found
        for (name, other), buffer in self.places.items():
            if name == tensor and other.same_memory(layout):
                return buffer
        raise InvariantError(f"{tensor} is not there as {layout}")

    def _constant(self, array: Array, dtype: str) -> str:
        flat = memory_of(array)
        key = f"c{digest_of(flat.dtype.str, flat.shape, flat.tobytes())[:24]}"
        if key not in self.buffers:
            self.buffers[key] = Buffer(key, dtype, flat.size, Role.CONSTANT, (), flat)
        return key

    # --------------------------------------------------------------------------------- calls

    def _call(self, plan: KernelPlan, arguments: Sequence[str], label: str) -> None:
        symbol = symbol_of(plan)
        self.plans.setdefault(symbol, plan)
        self.calls.append(Call(symbol, tuple(arguments), label))

    def _convert(self, tensor: str) -> None:
        """The copies of a tensor in other layouts."""
        for done in self.plan.conversions:
            if done.tensor != tensor:
                continue
            first = len(self.calls)
            source, target = self._placed(tensor, done.source), self._placed(tensor, done.target)
            read = self._place(tensor, done.source)
            label = f"{tensor} as {done.target}"
            plan = conversion_plan(source, target, self.plan.threads)
            self._call(plan, [read, self._output(tensor, done.target)], label)
            self.ranges[label] = first, len(self.calls)

    def _return_others(self) -> None:
        """Outputs of the network that no operator wrote in memory of their own: tensors that others
        read too, inputs, constants."""
        graph = self.plan.graph
        for name in graph.outputs:
            if name in self.results:
                continue
            kind = graph.types[name]
            plain = Layout.plain(kind.shape)
            result = self._unused(f"{name}.result") if name in graph.inputs else name
            self.results[name] = result
            self.buffers[result] = Buffer(
                result, stored(kind.dtype), plain.elements, Role.OUTPUT, plain.shape
            )
            if not kind.elements:
                continue
            constant = graph.constants.get(name)
            if constant is None:
                read = self._place(name, plain)
            else:
                read = self._constant(constant, stored(kind.dtype))
            placed = self._placed(name, plain)
            plan = conversion_plan(placed, placed, self.plan.threads)
            self._call(plan, [read, result], f"{name} returned")

    def _placed(self, tensor: str, layout: Layout) -> Placed:
        return self.plan.ways.placed(tensor, layout)

    def _alias(self, operator: Operator) -> None:
        """The result is the input's memory under another shape."""
        (source,), (target,) = ports_of(self.plan.graph, operator)
        before, after = self.plan.execution(operator).ports
        buffer = self._place(source, before)
        self.places[target, after] = buffer
        self.tensors[target] = buffer

    def _generated(self, operator: Operator) -> None:
        graph = self.plan.graph
        reads, writes = ports_of(graph, operator)
        layouts = dict(zip((*reads, *writes), self.plan.execution(operator).ports, strict=True))
        inputs = [
            self._placed(name, layouts.get(name, Layout.plain(graph.types[name].shape)))
            for name in operator.inputs
        ]
        arguments = [
            self._constant(graph.constants[name], stored(graph.types[name].dtype))
            if graph.is_constant(name)
            else self._place(name, layouts[name])
            for name in operator.inputs
        ]
        outputs = [self._placed(name, layouts[name]) for name in writes]
        plan = generated_plan(operator.kind, inputs, outputs, self.plan.threads)
        arguments += [self._place(name, layouts[name]) for name in writes]
        self._call(plan, arguments, operator.name)

    def _product(self, operator: Operator, kind: Product) -> None:
        graph, execution = self.plan.graph, self.plan.execution(operator)
        reads, (output,) = ports_of(graph, operator)
        layouts = dict(zip((*reads, output), execution.ports, strict=True))
        layer = execution.layer
        assert layer is not None
        residual = residual_of(operator)
        added = layouts[residual[0]] if residual else None
        first, second = operator.inputs[:2]
        plain = Layout.plain(graph.types[first].shape)
        made = laid_out(kind, layouts.get(first, plain), layouts[output], added)
        epilogue = kind.epilogue
        if layer.places:
            epilogue = replace(epilogue or Epilogue(kind.dtype), placement=made.output)
        if epilogue is not None and epilogue.residual is not None:
            placed = replace(epilogue.residual, placement=made.residual)
            epilogue = replace(epilogue, residual=placed)
        constants = self._packed_ahead(operator, kind, made.computation)
        calls = recorded(layer, epilogue, constants, self.plan.threads)
        names = {
            id(calls.given[made.computation.output.name]): self._place(output, layouts[output])
        }
        for operand, tensor in zip(made.computation.inputs, (first, second), strict=True):
            if operand.name in calls.given:
                names[id(calls.given[operand.name])] = self._place(tensor, layouts[tensor])
        for memory_name, memory in calls.given.items():
            if memory_name.startswith("@"):
                names[id(memory)] = self._place(residual[0], layouts[residual[0]])
        for call in calls.run:
            arguments = [self._memory(memory, names, operator) for memory in call.buffers]
            self._call(call.plan, arguments, operator.name)

    def _packed_ahead(
        self, operator: Operator, kind: Product, workload: Computation
    ) -> dict[str, Array]:
        """The constants of a product, in the shapes of its computation."""
        graph = self.plan.graph
        found: dict[str, Array] = {}
        for operand, tensor in zip(workload.inputs, operator.inputs, strict=False):
            if graph.is_constant(tensor):
                found[operand.name] = graph.constants[tensor].reshape(operand.shape)
        shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
        for name, tensor in zip(kind.vectors, operator.inputs[2:], strict=False):
            if name in (BIAS, SCALE):
                found[name] = graph.constants[tensor].reshape(shape)
        return found

    def _memory(self, memory: Memory, names: dict[int, str], operator: Operator) -> str:
        if id(memory) in names:
            return names[id(memory)]
        if memory.contents is not None:
            return self._constant(memory.contents, memory.dtype)
        name = self._unused(f"{operator.name}.{len(self.buffers)}")
        self.buffers[name] = Buffer(name, memory.dtype, memory.elements, Role.WORKSPACE)
        names[id(memory)] = name
        return name

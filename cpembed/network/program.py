"""Turn a plan into a program: buffers of tensors, calls of kernels, packed constants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.codegen.epilogue import channel_axes
from cpembed.codegen.host_cpu import needed_features
from cpembed.codegen.plan import KernelPlan
from cpembed.codegen.recorded import Memory
from cpembed.codegen.values import flat_storage, storage_type
from cpembed.errors import InvariantError
from cpembed.export.program import Buffer, Call, CallLoop, Program, Role
from cpembed.graph.graph import Array, Operator
from cpembed.graph.kinds import Attention, CacheUpdate, Product, QuantizedAttention
from cpembed.graph.loop import Loop
from cpembed.ir.computation import Computation
from cpembed.network.executions import ports_of
from cpembed.network.kernel_cache import Cache, KernelCompiler, kernel_compiler
from cpembed.network.layout import Layout, residual_of
from cpembed.network.loop_program import LoopBuilder
from cpembed.network.operators import PlacedTensor, conversion_plan, generated_plan
from cpembed.network.operators.pairs import IMAGE, OUTPUT, RESIDUAL
from cpembed.network.pair_parts import ProductPart
from cpembed.network.pairs import PairKernel
from cpembed.network.physical_product import physical_product
from cpembed.network.plan import NetworkPlan
from cpembed.network.product_kernel import recorded_kernel
from cpembed.steps import Progress


@dataclass(frozen=True)
class NetworkProgram:
    """Program of a network, and where its operators and tensors are in it.

    Attributes
    ----------
    calls : mapping from str to (int, int)
        Range of the calls of each operator and each conversion.
    tensors : mapping from str to str
        Buffer of each tensor in the layout in which it is written.
    results : mapping from str to str
        Buffer of each output of the network.
    """

    program: Program
    calls: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, str]
    results: Mapping[str, str]
    bodies: Mapping[str, LoopProgram] = field(default_factory=dict[str, "LoopProgram"])


@dataclass(frozen=True)
class LoopProgram:
    """Tensors of a loop's body in a program.

    Attributes
    ----------
    number : int
        Number of the loop in the program.
    tensors, results : mapping from str to str
        Buffers of the body, as in :class:`NetworkProgram`.
    bodies : mapping from str to LoopProgram
        Loops inside this one, by name.
    """

    number: int
    tensors: Mapping[str, str]
    results: Mapping[str, str]
    bodies: Mapping[str, LoopProgram]


def network_program(
    plan: NetworkPlan, name: str, cache: Cache, progress: Progress
) -> NetworkProgram:
    """Return the program of a plan, with its kernels compiled.

    Parameters
    ----------
    plan : NetworkPlan
    name : str
        Name of the library.
    cache : Cache
    progress : Progress

    Raises
    ------
    LoweringError
        If a kernel cannot be compiled.
    """
    (program,) = network_programs([plan], name, cache, progress)
    return program


def network_programs(
    plans: Sequence[NetworkPlan], name: str, cache: Cache, progress: Progress
) -> tuple[NetworkProgram, ...]:
    """Return the programs of several plans, whose kernels are compiled together.

    Parameters
    ----------
    plans : sequence of NetworkPlan
    name, cache, progress
        As for :func:`network_program`.

    Raises
    ------
    LoweringError
        If a kernel cannot be compiled.
    """
    # Kernels are compiled in other processes while this one packs constants.
    with kernel_compiler(cache, progress) as compiler:
        builders = [
            ProgramBuilder(
                plan, compiler, reserved=frozenset((*plan.graph.inputs, *plan.graph.outputs))
            )
            for plan in plans
        ]
        for builder in builders:
            builder.make()
        kernels = compiler.finished()
    return tuple(
        NetworkProgram(
            Program(
                name=name,
                buffers=builder.in_order(),
                kernels={call.kernel: kernels[call.kernel] for call in builder.calls},
                prepare=(),
                run=tuple(builder.calls),
                features=needed_features(tuple(dict.fromkeys(required_features(plan)))),
                threads=plan.threads,
                loops=tuple(builder.loops),
            ),
            builder.ranges,
            builder.tensors,
            builder.results,
            builder.bodies,
        )
        for plan, builder in zip(plans, builders, strict=True)
    )


def required_features(plan: NetworkPlan) -> Iterator[str]:
    """Yield the processor features that the kernels' instructions require."""
    for execution in plan.executions.values():
        for kernel in execution.kernels:
            if kernel.spec is not None:
                yield from kernel.spec.cpu_features
    for body in plan.bodies.values():
        yield from required_features(body)


@dataclass
class ProgramBuilder:
    """Buffers and calls of a program while it is built.

    A builder of a loop's body shares buffers, kernels, calls and loops with that of the network.

    Attributes
    ----------
    plan : NetworkPlan
    compiler : KernelCompiler
        Compiler of the kernels.
    reserved : frozenset of str
        Names of the network's inputs and outputs.
    prefix : str
        Text before the names of buffers; it distinguishes those of a body.
    loop : int, optional
        Number of the loop whose body is built.
    """

    plan: NetworkPlan
    compiler: KernelCompiler
    reserved: frozenset[str] = frozenset()
    prefix: str = ""
    loop: int | None = None
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    calls: list[Call] = field(default_factory=list[Call])
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    tensors: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[tuple[str, Layout], str] = field(default_factory=dict[tuple[str, Layout], str])
    results: dict[str, str] = field(default_factory=dict[str, str])
    loops: list[CallLoop] = field(default_factory=list[CallLoop])
    bodies: dict[str, LoopProgram] = field(default_factory=dict[str, LoopProgram])

    def make(self) -> None:
        """Add the buffers and calls of the network."""
        for name, kind in self.plan.graph.inputs.items():
            self._add(name, self.plan.written[name], Role.INPUT, kind.shape)
            self._convert(name)
        self.make_operators()

    def make_operators(self) -> None:
        """Add the operators, after the inputs, and the copies of results."""
        graph = self.plan.graph
        for operator in graph.operators:
            first = len(self.calls)
            if isinstance(operator.kind, Loop):
                self._outputs(operator)
                self._loop(operator, operator.kind)
            elif self.plan.execution(operator).aliases:
                self._alias(operator)
            elif self.plan.execution(operator).is_deferred:
                # The kernel of the pair's second operator computes it, and nothing else reads it.
                self.ranges[operator.name] = first, first
                continue
            else:
                self._outputs(operator)
                pair = self.plan.execution(operator).pair
                if pair is not None:
                    self._pair(operator, pair)
                elif isinstance(operator.kind, Product):
                    self._product(operator, operator.kind)
                elif isinstance(operator.kind, Attention | QuantizedAttention):
                    self._attention(operator)
                else:
                    self._generated(operator)
            self.ranges[operator.name] = first, len(self.calls)
            # Right after it was written, so that each copy is there for all readers.
            for name in operator.outputs:
                self._convert(name)
        self._return_copies()

    def _loop(self, operator: Operator, kind: Loop) -> None:
        body = ProgramBuilder(
            plan=self.plan.bodies[operator.name],
            compiler=self.compiler,
            reserved=self.reserved,
            prefix=f"{operator.name}/",
            loop=len(self.loops),
            buffers=self.buffers,
            calls=self.calls,
            ranges=self.ranges,
            loops=self.loops,
        )
        number = LoopBuilder(self, operator, kind, body).make()
        self.bodies[operator.name] = LoopProgram(number, body.tensors, body.results, body.bodies)

    def bind(self, tensor: str, buffer: str) -> None:
        """Let a buffer be an input of the body, in row-major order, and add its conversions."""
        self.places[tensor, self.plan.written[tensor]] = buffer
        self.tensors[tensor] = buffer
        self._convert(tensor)

    def in_order(self) -> tuple[Buffer, ...]:
        """Return the buffers: the network's inputs and outputs in its order, then the rest."""
        graph = self.plan.graph
        first = [self.buffers[name] for name in graph.inputs]
        first += [self.buffers[self.results[name]] for name in dict.fromkeys(graph.outputs)]
        rest = [b for b in self.buffers.values() if b.role not in (Role.INPUT, Role.OUTPUT)]
        return (*first, *rest)

    # ------------------------------------------------------------------------------- buffers

    def _add(self, tensor: str, layout: Layout, role: Role, shape: tuple[int, ...] = ()) -> str:
        """Add a buffer for a tensor in a layout."""
        kind = self.plan.graph.types[tensor]
        # The library fills halos once; kernels never write them.
        fill = self.plan.choices.layouts.fills.get(tensor, 0) if layout.has_halo else None
        is_callers = role is not Role.WORKSPACE
        name = tensor if is_callers else self.unused(f"{self.prefix}{tensor}@{layout}")
        buffer = Buffer(
            name=name,
            dtype=storage_type(kind.dtype),
            elements=layout.elements,
            role=role,
            shape=shape,
            fill=fill,
        )
        self.buffers[name] = buffer
        self.places[tensor, layout] = name
        self.tensors.setdefault(tensor, name)
        return name

    def unused(self, text: str) -> str:
        """Return a name that no buffer, and no input or output of the network, has."""
        name, number = text, 2
        while name in self.reserved or name in self.buffers:
            name, number = f"{text} ({number})", number + 1
        return name

    def _outputs(self, operator: Operator) -> None:
        for name in operator.outputs:
            self._output(name, self.plan.written[name])

    def _output(self, name: str, layout: Layout) -> str:
        graph = self.plan.graph
        plain = layout.same_memory(Layout.plain(layout.shape))
        # An updated cache is in the caller's memory, also for its readers: a copy of it would take
        # longer than the update.
        is_cache = name in graph.producers and isinstance(graph.producers[name].kind, CacheUpdate)
        is_final = name in graph.outputs and (is_cache or not graph.readers[name])
        if is_final and plain and name not in self.results:
            role, shape = (Role.OUTPUT, layout.shape) if self.loop is None else (Role.WORKSPACE, ())
            self.results[name] = self._add(name, layout, role, shape)
            return self.results[name]
        return self._add(name, layout, Role.WORKSPACE)

    def place(self, tensor: str, layout: Layout) -> str:
        """Return the buffer of a tensor in a layout, or in one that is the same memory."""
        buffer = self.places.get((tensor, layout))
        if buffer is not None:
            return buffer
        for (name, existing), buffer in self.places.items():
            if name == tensor and existing.same_memory(layout):
                return buffer
        raise InvariantError(f"{tensor} is not there as {layout}")

    def constant(self, array: Array, dtype: str) -> str:
        flat = flat_storage(array)
        digest = hashlib.blake2b(f"{flat.dtype.str} {flat.shape}".encode(), digest_size=12)
        digest.update(flat.data.cast("B"))
        key = f"c{digest.hexdigest()}"
        # Equal constants share a buffer, also across operators.
        if key not in self.buffers:
            self.buffers[key] = Buffer(
                name=key, dtype=dtype, elements=flat.size, role=Role.CONSTANT, shape=(), data=flat
            )
        return key

    # --------------------------------------------------------------------------------- calls

    def _call(self, plan: KernelPlan, arguments: Sequence[str], label: str) -> None:
        symbol = self.compiler.add(plan)
        self.calls.append(Call(symbol, tuple(arguments), label))

    def _convert(self, tensor: str) -> None:
        """Add the copies of a tensor in other layouts."""
        for conversion in self.plan.conversions:
            if conversion.tensor != tensor:
                continue
            first = len(self.calls)
            source = self._placed(tensor, conversion.source)
            target = self._placed(tensor, conversion.target)
            plan = conversion_plan(source, target, self.plan.threads)
            read = self.place(tensor, conversion.source)
            label = f"{self.prefix}{tensor} as {conversion.target}"
            self._call(plan, [read, self._output(tensor, conversion.target)], label)
            self.ranges[label] = first, len(self.calls)

    def _return_copies(self) -> None:
        """Add copies of outputs that are inputs, constants, or tensors with readers."""
        graph = self.plan.graph
        for name in graph.outputs:
            if name in self.results:
                continue
            kind = graph.types[name]
            plain = Layout.plain(kind.shape)
            is_free = self.loop is None and name not in graph.inputs
            result = name if is_free else self.unused(f"{self.prefix}{name}.result")
            self.results[name] = result
            role, shape = (Role.OUTPUT, plain.shape) if self.loop is None else (Role.WORKSPACE, ())
            self.buffers[result] = Buffer(
                name=result,
                dtype=storage_type(kind.dtype),
                elements=plain.elements,
                role=role,
                shape=shape,
            )
            # No kernel takes a tensor without elements.
            if not kind.elements:
                continue
            constant = graph.constants.get(name)
            read = (
                self.place(name, plain)
                if constant is None
                else self.constant(constant, storage_type(kind.dtype))
            )
            placed = self._placed(name, plain)
            plan = conversion_plan(placed, placed, self.plan.threads)
            self._call(plan, [read, result], f"{self.prefix}{name} returned")

    def _placed(self, tensor: str, layout: Layout) -> PlacedTensor:
        return self.plan.choices.placed(tensor, layout)

    def _alias(self, operator: Operator) -> None:
        """Give the result the input's buffer, which holds it under another shape."""
        (source,), (target,) = ports_of(self.plan.graph, operator)
        before, after = self.plan.execution(operator).ports
        buffer = self.place(source, before)
        self.places[target, after] = buffer
        self.tensors[target] = buffer

    def _generated(self, operator: Operator) -> None:
        graph = self.plan.graph
        layouts = self._layouts(operator)
        inputs = [
            self._placed(name, layouts.get(name, Layout.plain(graph.types[name].shape)))
            for name in operator.inputs
        ]
        outputs = [self._placed(name, layouts[name]) for name in operator.outputs]
        plan = generated_plan(operator.kind, inputs, outputs, self.plan.threads)
        self._call(plan, self._arguments(operator), operator.name)

    def _layouts(self, operator: Operator) -> dict[str, Layout]:
        """Return the layouts of the tensors of an operator, without constants."""
        reads, writes = ports_of(self.plan.graph, operator)
        return dict(zip((*reads, *writes), self.plan.execution(operator).ports, strict=True))

    def _arguments(self, operator: Operator) -> list[str]:
        """Return the buffers of an operator's inputs and outputs."""
        graph, layouts = self.plan.graph, self._layouts(operator)
        # Operators read constants as they are, in row-major order.
        return [
            self.constant(graph.constants[name], storage_type(graph.types[name].dtype))
            if graph.is_constant(name)
            else self.place(name, layouts[name])
            for name in (*operator.inputs, *operator.outputs)
        ]

    def _attention(self, operator: Operator) -> None:
        kernel = self.plan.execution(operator).attention
        assert kernel is not None
        names: dict[int, str] = {}
        scratch = [self._memory(memory, names, operator) for memory in kernel.planned.scratch]
        self._call(kernel.planned.plan, [*self._arguments(operator), *scratch], operator.name)

    def _product(self, operator: Operator, kind: Product) -> None:
        graph, execution = self.plan.graph, self.plan.execution(operator)
        reads, (output,) = ports_of(graph, operator)
        layouts = dict(zip((*reads, output), execution.ports, strict=True))
        kernel = execution.kernel
        assert kernel is not None
        residual = residual_of(operator)
        first, second = operator.inputs[:2]
        if execution.method is None:
            plain = Layout.plain(graph.types[first].shape)
            residual_layout = layouts[residual[0]] if residual else None
            physical = physical_product(
                kind, layouts.get(first, plain), layouts[output], residual_layout
            )
            computation = physical.computation
            epilogue = physical.epilogue(kind, places=kernel.places)
            constants = self._constants(operator, kind, computation)
            calls = recorded_kernel(kernel, epilogue, constants, self.plan.threads)
        else:
            # A method has layouts that sums have not, such as a residual in another order.
            computation = kind.computation
            constants = self._constants(operator, kind, computation)
            calls = execution.method.recorded(kernel, constants, self.plan.threads)
        operands = (*computation.inputs, computation.output)
        tensors = zip((o.name for o in operands), (first, second, output), strict=True)
        tensor_of = dict(tensors)
        # Buffers of the graph's tensors by the recorded memory that stands for them. A name with @
        # is a vector of the epilogue; since the vectors are constants, it is the residual.
        names: dict[int, str] = {}
        for operand, memory in calls.caller_memory.items():
            tensor = residual[0] if operand.startswith("@") else tensor_of[operand]
            names[id(memory)] = self.place(tensor, layouts[tensor])
        # Memory without a name yet is packed constants or an intermediate result.
        for call in calls.run:
            arguments = [self._memory(memory, names, operator) for memory in call.buffers]
            self._call(call.plan, arguments, operator.name)

    def _pair(self, operator: Operator, pair: PairKernel) -> None:
        """Add the call of a kernel that computes an operator and the one before it."""
        first = self.plan.graph.producers[operator.inputs[0]]
        constants: list[dict[str, Array]] = [
            self._constants(each, part.band.kind, part.band.computation)
            if isinstance(part, ProductPart)
            else {}
            for each, part in zip((first, operator), pair.parts, strict=True)
        ]
        planned = pair.planned(constants)
        buffers = {OUTPUT: self.place(operator.output, self.plan.execution(operator).ports[-1])}
        buffers[IMAGE] = self.place(first.inputs[0], self.plan.execution(first).ports[0])
        for residual in residual_of(operator):
            buffers[RESIDUAL] = self.place(residual, self._layouts(operator)[residual])
        names: dict[int, str] = {}
        arguments = [
            buffers.get(name) or self._memory(memory, names, operator)
            for name, memory in planned.memory.items()
        ]
        self._call(planned.plan, arguments, operator.name)

    def _constants(
        self, operator: Operator, kind: Product, workload: Computation
    ) -> dict[str, Array]:
        """Return the constants of a product, in the shapes of its computation."""
        graph = self.plan.graph
        constants: dict[str, Array] = {}
        for operand, tensor in zip(workload.inputs, operator.inputs, strict=False):
            if graph.is_constant(tensor):
                constants[operand.name] = graph.constants[tensor].reshape(operand.shape)
        shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
        for name, tensor in zip(kind.vectors, operator.inputs[2:], strict=False):
            constants[name] = graph.constants[tensor].reshape(shape)
        return constants

    def _memory(self, memory: Memory, names: dict[int, str], operator: Operator) -> str:
        if id(memory) in names:
            return names[id(memory)]
        if memory.contents is not None:
            return self.constant(memory.contents, memory.dtype)
        name = self.unused(f"{operator.name}.{len(self.buffers)}")
        self.buffers[name] = Buffer(name, memory.dtype, memory.elements, Role.WORKSPACE)
        names[id(memory)] = name
        return name

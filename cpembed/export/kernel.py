"""A kernel of one workload as a program: its operands in their original layouts, its weights packed
once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cpembed.export.program import Buffer, Call, CompiledObject, Program, Role
from cpembed.ir.computation import Computation
from cpembed.kernel.compiled import CompiledKernel
from cpembed.kernel.epilogue import channel_axes
from cpembed.kernel.plan import KernelPlan
from cpembed.kernel.program_nest import channel_index
from cpembed.kernel.script import HEADER, Script, buffer, grid, zero
from cpembed.transform.program import PackedOperand

CompileObject = Callable[[KernelPlan, str], CompiledObject]
"""A plan as the object file of a symbol."""


def kernel_program(
    name: str,
    kernel: CompiledKernel,
    ahead: Collection[str],
    compile_object: CompileObject,
    *,
    features: tuple[str, ...] = (),
    threads: int = 0,
) -> Program:
    """The program of one kernel: what a whole call does that :meth:`CompiledKernel.bound_whole`
    times.

    Operands in ``ahead`` are weights, and so are the vectors of an epilogue (:func:`vector_name`);
    the others are inputs.
    Steps are called by what they do, and buffers by their operands, in the packed layout
    ``<operand>.packed``.
    """
    made = _Maker(name, kernel, frozenset(ahead), compile_object)
    made.build()
    return Program(
        name,
        made.in_order(),
        made.kernels,
        tuple(made.prepare),
        tuple(made.run),
        features,
        threads,
    )


@dataclass
class _Maker:
    """Collects the buffers and the calls of a program."""

    name: str
    kernel: CompiledKernel
    ahead: frozenset[str]
    compile_object: CompileObject
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    kernels: dict[str, CompiledObject] = field(default_factory=dict[str, CompiledObject])
    prepare: list[Call] = field(default_factory=list[Call])
    run: list[Call] = field(default_factory=list[Call])

    def build(self) -> None:
        kernel = self.kernel
        first = kernel.factors[0]
        whole = None if first.name in self.ahead else kernel.plan_on_original
        arguments: list[str] = []
        for operand in kernel.factors:
            inside = whole is not None and operand is first
            arguments.append(self._given(operand) if inside else self._factor(operand))
        vectors = () if kernel.epilogue is None else kernel.epilogue.vectors
        arguments += [self._vector(name) for name in vectors]
        output = kernel.output
        in_place = kernel.is_packed_in_place(output.name)
        result = self._given(output, Role.OUTPUT)
        packed = result if in_place else self._packed(output, Role.WORKSPACE)
        arguments.append(packed)
        if whole is not None and whole.copies:
            copies = Buffer(f"{first.name}.copies", first.dtype, whole.copies, Role.WORKSPACE)
            arguments.append(self._add(copies))
        self._call(self.run, "compute", whole or kernel.plan, arguments)
        if not in_place:
            plan = kernel.move_plan(output.name)
            self._call(self.run, f"unpack_{output.name}", plan, [packed, result])

    def in_order(self) -> tuple[Buffer, ...]:
        """The buffers: operands as the workload has them, then vectors, then the rest."""
        names = [operand.name for operand in self.kernel.program.unfused.inputs]
        place = {name: number for number, name in enumerate(names)}
        given = sorted(self.buffers.values(), key=lambda b: place.get(b.name, len(place)))
        return tuple(given)

    def _add(self, buffer: Buffer) -> str:
        self.buffers[buffer.name] = buffer
        return buffer.name

    def _given(self, operand: PackedOperand, role: Role | None = None) -> str:
        shape = operand.original_shape
        role = role or (Role.WEIGHTS if operand.name in self.ahead else Role.INPUT)
        return self._add(Buffer(operand.name, operand.dtype, math.prod(shape), role, shape))

    def _packed(self, operand: PackedOperand, role: Role) -> str:
        return self._add(Buffer(f"{operand.name}.packed", operand.dtype, operand.elements, role))

    def _factor(self, operand: PackedOperand) -> str:
        """A factor as the contraction takes it; its packing is called before."""
        given = self._given(operand)
        if self.kernel.is_packed_in_place(operand.name):
            return given
        once = operand.name in self.ahead
        packed = self._packed(operand, Role.PACKED if once else Role.WORKSPACE)
        plan = self.kernel.move_plan(operand.name)
        calls = self.prepare if once else self.run
        self._call(calls, f"pack_{operand.name}", plan, [given, packed])
        return packed

    def _vector(self, name: str) -> str:
        """A vector of the epilogue, padded as the channels are."""
        program, epilogue = self.kernel.program, self.kernel.epilogue
        assert epilogue is not None
        workload = program.unfused
        shape = tuple(workload.extents[axis] for axis in channel_axes(workload))
        dtype = epilogue.vector_dtype(name, workload.output.dtype)
        word = vector_name(workload, name)
        given = self._add(Buffer(word, dtype, math.prod(shape), Role.WEIGHTS, shape))
        _, padded = channel_index(program)
        if padded == shape:
            return given
        held = self._add(Buffer(f"{word}.packed", dtype, math.prod(padded), Role.PACKED))
        plan = KernelPlan("packing", padding_source(dtype, shape, padded))
        self._call(self.prepare, f"pack_{word}", plan, [given, held])
        return held

    def _call(self, calls: list[Call], label: str, plan: KernelPlan, arguments: list[str]) -> None:
        symbol = f"{self.name}_{label}"
        self.kernels[symbol] = self.compile_object(plan, symbol)
        calls.append(Call(symbol, tuple(arguments), label))


def vector_name(workload: Computation, name: str) -> str:
    """What the buffer of an epilogue's vector is called: by its own word, which differs from the
    names of the workload's operands."""
    word = name.removeprefix("@")
    while word in {operand.name for operand in workload.operands}:
        word += "_"
    return word


def padding_source(dtype: str, shape: tuple[int, ...], padded: tuple[int, ...]) -> str:
    """TVMScript of ``main(source, target)``: an array with zeros behind each dimension."""
    names = [f"at_{dimension}" for dimension in range(len(shape))]

    def flat(extents: tuple[int, ...]) -> str:
        text = "0"
        for name, extent in zip(names, extents, strict=True):
            text = f"({text}) * {extent} + {name}"
        return text

    script = Script()
    script.line(HEADER)
    source = buffer("source", math.prod(shape), dtype)
    target = buffer("target", math.prod(padded), dtype)
    with script.nested(f"def main({source}, {target}):"):
        script.line('T.func_attr({"tirx.noalias": True, "global_symbol": "main"})')
        for clears, extents in ((True, padded), (False, shape)):
            with script.nested(*grid(names, extents), 'with T.sblock("copy"):'):
                script.line("T.reads(source[0])")
                script.line("T.writes(target[0])")
                value = zero(dtype) if clears else f"source[{flat(shape)}]"
                script.line(f"target[{flat(padded)}] = {value}")
    return script.text()

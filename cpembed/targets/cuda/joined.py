"""Kernels of several products that write parts of one tensor, such as the phases of a gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.plan import storage_dtype
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype, size_bytes
from cpembed.targets.base import Array
from cpembed.targets.cuda.build import (
    CudaKernels,
    CudaText,
    Kernel,
    Parameter,
    Tensor,
    execute,
)
from cpembed.targets.cuda.compiling import architectures_of
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.saving.cases import Case, Expected, case_of, cases_of
from cpembed.targets.cuda.saving.folder import named
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.writer import ELEMENT_THREADS, element_launch

Part = tuple[Computation, Epilogue]
"""Workload of a part of a tensor, and the epilogue that places its result there."""


@dataclass(frozen=True)
class JoinedKernels:
    """Kernels of all parts as one text, which share the tensors that they have in common.

    Attributes
    ----------
    text : CudaText
    inputs : tuple of Tensor
    output : Tensor
    prepares : frozenset of str
        Names of the kernels that pack weights.
    """

    text: CudaText
    inputs: tuple[Tensor, ...]
    output: Tensor
    prepares: frozenset[str]

    @classmethod
    def from_parts(cls, parts: Mapping[str, CudaKernels], shape: Sequence[int]) -> JoinedKernels:
        """Join kernels whose results are placed in one buffer.

        Parameters
        ----------
        parts : mapping of str to CudaKernels
            Kernels by an identifier of C, with which the names of theirs begin.
        shape : sequence of int
            Shape of the tensor that they write parts of.
        """
        inputs: dict[str, Tensor] = {}
        kernels: list[Kernel] = []
        sources: list[str] = []
        prepares: set[str] = set()
        outputs: list[Tensor] = []
        for label, part in parts.items():
            buffers: dict[str, str] = {}
            for tensor in part.operands():
                shared = replace(tensor, buffer=f"{tensor.tensor}_tensor")
                inputs.setdefault(tensor.tensor, shared)
                buffers[tensor.buffer] = shared.buffer
            (result,) = part.results()
            outputs.append(replace(result, shape=tuple(shape)))
            buffers[result.buffer] = result.buffer
            text = named(part.text, label)
            sources.append(text.source)
            names = zip(part.text.kernels, text.kernels, strict=True)
            prepares |= {
                new.launch.kernel for old, new in names if old.launch.kernel in part.prepares()
            }
            for kernel in text.kernels:
                parameters = (
                    replace(each, name=buffers.get(each.name, f"{label}_{each.name}"))
                    for each in kernel.parameters
                )
                kernels.append(replace(kernel, parameters=tuple(parameters)))
        (output, *_), first = outputs, next(iter(parts.values())).plan.product
        written = sum(part.plan.product.output.layout.elements for part in parts.values())
        if written < math.prod(shape):
            zero = _zero(output)
            sources.append(zero.source)
            kernels[:0] = zero.kernels
        bulk = any(isinstance(part.plan, SpecializedPlan) for part in parts.values())
        architectures = architectures_of(first.instruction, bulk=bulk)
        text = CudaText("\n".join(sources), tuple(kernels), architectures)
        return cls(text, tuple(inputs.values()), output, frozenset(prepares))

    def run(self, inputs: Mapping[str, Array], order: Order | int = Order.FORWARD) -> Array:
        """Execute the kernels, one after the other.

        Raises :class:`~cpembed.errors.ExecutionFault` if they do what a GPU leaves undefined, or
        leave elements unwritten.
        """
        (output,), _ = execute(self.text, self.inputs, [self.output], inputs, order)
        return output


def _zero(output: Tensor) -> CudaText:
    """Return a kernel that stores zeros, where parts leave elements of a tensor out."""
    elements, size = math.prod(output.shape), size_bytes(output.dtype)
    kind = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int"}[size]
    bounds = f"__launch_bounds__({ELEMENT_THREADS})"
    source = f"""\
extern "C" __global__ void {bounds} zero_kernel({kind}* __restrict__ C) {{
  long long place = (long long)blockIdx.x * {ELEMENT_THREADS} + threadIdx.x;
  if (place < {elements}) C[place] = 0;
}}
"""
    parameter = Parameter(output.buffer, elements, storage_dtype(output.dtype))
    return CudaText(source, (Kernel(element_launch("zero", elements), (parameter,)),))


def joined_cases(parts: Sequence[Part], shape: Sequence[int]) -> list[Case]:
    """Return the cases of a tensor whose parts are results of workloads.

    Parameters
    ----------
    parts : sequence
        Each part's workload, and its epilogue, which places the result in the tensor.
    shape : sequence of int
        Shape of the tensor.
    """
    # Sums of the most products have the strictest inputs.
    workload, epilogue = max(parts, key=lambda part: part[0].macs // part[0].output.elements)
    cases: list[Case] = []
    for case in cases_of(workload, replace(epilogue, placement=None)):
        factors = {operand.tensor: case.drawings[operand.tensor] for operand in workload.inputs}
        total = np.zeros(math.prod(shape), numpy_dtype(epilogue.dtype))
        expected: list[Expected] = []
        for part, stored in parts:
            assert stored.placement is not None
            of_part = case_of(case.name, part, replace(stored, placement=None), factors)
            (result,) = of_part.results.values()
            stored.placement.view(total, result.array.shape)[...] = result.array
            expected.append(result)
        joined = Expected(
            total.reshape(tuple(shape)),
            max(each.absolute for each in expected),
            max(each.relative for each in expected),
            expected[0].spreads,
        )
        cases.append(replace(case, results={workload.output.name: joined}))
    return cases

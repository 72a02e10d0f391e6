"""Kernels of a chain as CUDA text, and their execution on this machine's processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.plan import storage_dtype
from cpembed.targets.cuda.build import CudaText, Parameter, Tensor, Viewed, execute, generate
from cpembed.targets.cuda.chains.apart import ApartPlan
from cpembed.targets.cuda.chains.emit import chain_kernel, parameters_of
from cpembed.targets.cuda.chains.group_emit import group_kernel
from cpembed.targets.cuda.chains.group_plan import GroupPlan
from cpembed.targets.cuda.chains.plan import ChainPlan
from cpembed.targets.cuda.emulator.executor import Counters, Launch, Order
from cpembed.targets.cuda.packing import packing
from cpembed.targets.cuda.reduction import reduction
from cpembed.targets.cuda.warp_specialized.loads import map_name
from cpembed.targets.cuda.writer import Functions
from cpembed.workloads.chains import RowSoftmax

Array = NDArray[Any]


def functions(plan: ChainPlan) -> Functions:
    """Return the kernels of a plan by name, in the order in which they run."""
    kernels: Functions = {}
    for factor in plan.factors:
        if factor.operand.needs_packing:
            kernels |= packing(factor.operand, factor.role)
    rows, columns, batch = plan.blocks
    splits = plan.schedule.splits
    grid, threads = (rows * columns, batch, splits), (plan.threads, 1, 1)
    writer = group_kernel(plan) if isinstance(plan, GroupPlan) else chain_kernel(plan)
    kernels["chain"] = writer, Launch("chain_kernel", grid, threads, plan.shared_bytes)
    if splits > 1:
        weighted = isinstance(plan.chain.function, RowSoftmax)
        kernels |= reduction(plan.second, splits, weighted=weighted)
    return kernels


def chain_text(plan: ChainPlan | ApartPlan, architecture: str) -> CudaText:
    """Generate the kernels of a plan as CUDA C++.

    Raises :class:`~cpembed.errors.LoweringError` if TVM rejects them.
    """
    if isinstance(plan, ApartPlan):
        return plan.text(architecture)
    return generate(functions(plan), architecture, {"chain": _tensor_maps(plan)})


def _tensor_maps(plan: ChainPlan) -> dict[str, Viewed]:
    """Return the parameters that are tensor maps, with the buffers that they describe."""
    maps = dict[str, Viewed]()
    if isinstance(plan, GroupPlan):
        for factor in plan.factors:
            layout = factor.operand.layout
            buffer = Parameter(factor.role, layout.elements, storage_dtype(layout.dtype))
            maps[map_name(factor.role)] = buffer, plan.tensor_maps[factor.role]
    return maps


def operands_of(plan: ChainPlan | ApartPlan) -> tuple[Tensor, ...]:
    """Return the tensors that the kernels of a plan read, in their original layouts."""
    if isinstance(plan, ApartPlan):
        return plan.operands
    packed = {f.role for f in plan.factors if f.operand.needs_packing}
    return tuple(
        Tensor(f"{name}_original" if name in packed else name, tensor, *plan.chain.inputs[tensor])
        for name, tensor in parameters_of(plan).items()
    )


def prepares_of(plan: ChainPlan | ApartPlan) -> frozenset[str]:
    """Return the names of the kernels that pack weights, which run before all calls."""
    if isinstance(plan, ApartPlan):
        return plan.prepares
    return frozenset(
        f"pack_{factor.role}_kernel"
        for factor in plan.factors
        if factor.operand.needs_packing
        and factor.role != "A"
        and not factor.product.program.workload.inputs[1].varies
    )


@dataclass(eq=False)
class ChainKernels:
    """Generated kernels of a chain."""

    plan: ChainPlan | ApartPlan
    text: CudaText
    kernel_counters: dict[str, Counters] = field(default_factory=dict[str, Counters])
    """Counters of the last run by kernel."""

    @property
    def counters(self) -> Counters:
        """Counters of the last run, all kernels together."""
        return sum(self.kernel_counters.values(), Counters())

    def run(self, inputs: Mapping[str, Array], order: Order | int = Order.FORWARD) -> Array:
        """Execute the kernels.

        Parameters
        ----------
        inputs
            Arrays of :attr:`~cpembed.workloads.chains.ProductChain.inputs`.
        order
            Order of threads, or the seed of a random one.

        Raises
        ------
        ExecutionFault
            If the kernels do what a GPU leaves undefined, or leave elements unwritten.
        """
        second = self.plan.second
        shape = tuple(second.output.layout.original_shape)
        result = Tensor("C", self.plan.chain.second.output.name, shape, second.output_dtype)
        (output,), self.kernel_counters = execute(
            self.text, operands_of(self.plan), [result], inputs, order
        )
        return output

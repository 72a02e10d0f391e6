"""Kernels of a plan of warp groups, in the order in which they run, as CUDA text."""

from __future__ import annotations

from cpembed.codegen.plan import storage_dtype
from cpembed.targets.cuda.build import CudaText, Parameter, Viewed, generate
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.packing import packing
from cpembed.targets.cuda.reduction import reduction
from cpembed.targets.cuda.warp_specialized.emit import product_kernel
from cpembed.targets.cuda.warp_specialized.loads import map_name
from cpembed.targets.cuda.warp_specialized.packing import PackedImages, image_packing
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.streaming import clearing
from cpembed.targets.cuda.writer import PARAMETERS, Functions

ARCHITECTURE = "sm_90"
"""Architecture that TVM generates text for; the text needs ``sm_90a``."""


def functions(plan: SpecializedPlan) -> Functions:
    """Return the kernels of a plan by name, in the order in which they run."""
    schedule, kernels = plan.schedule, Functions()
    for number, name in enumerate(PARAMETERS):
        if schedule.loads[number] == "bulk":
            kernels |= image_packing(PackedImages(plan, number))
        elif plan.packs(number):
            kernels |= packing(plan.operand(number), name)
    if plan.order.streamed:
        kernels |= clearing(plan)
    grid, threads, cluster = plan.grid, schedule.threads, schedule.cluster_blocks
    launch = Launch(
        "product_kernel", (grid, 1, 1), (threads, 1, 1), plan.shared_bytes, (cluster, 1, 1)
    )
    kernels["product"] = product_kernel(plan), launch
    if schedule.splits > 1:
        kernels |= reduction(plan.product, schedule.splits)
    return kernels


def tensor_maps(plan: SpecializedPlan) -> dict[str, Viewed]:
    """Return the parameters that are tensor maps, with the buffers that they describe."""
    maps = dict[str, Viewed]()
    for name, view in zip(PARAMETERS, plan.views, strict=True):
        if view is not None:
            layout = view.operand.layout
            buffer = Parameter(name, layout.elements, storage_dtype(layout.dtype))
            maps[map_name(name)] = buffer, view.tensor_map
    if plan.store is not None:
        output, dtype = plan.product.output, storage_dtype(plan.product.output_dtype)
        maps[map_name("C")] = Parameter("C", output.elements, dtype), plan.store.tensor_map
    return maps


def cuda_text(plan: SpecializedPlan) -> CudaText:
    """Generate the kernels of a plan as CUDA C++.

    Raises :class:`~cpembed.errors.LoweringError` if TVM rejects them.
    """
    return generate(functions(plan), ARCHITECTURE, {"product": tensor_maps(plan)})

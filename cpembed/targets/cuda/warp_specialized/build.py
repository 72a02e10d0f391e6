"""Kernels of a plan of warp groups, in the order in which they run, as CUDA text."""

from __future__ import annotations

from cpembed.codegen.plan import storage_dtype
from cpembed.targets.cuda.build import CudaText, Parameter, Viewed, generate
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.packing import PACKING_THREADS, packing_blocks, packing_kernel
from cpembed.targets.cuda.reduction import REDUCTION_THREADS, reduction_kernel
from cpembed.targets.cuda.warp_specialized.emit import product_kernel
from cpembed.targets.cuda.warp_specialized.loads import map_name
from cpembed.targets.cuda.warp_specialized.packing import PackedImages, images_kernel
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.cuda.warp_specialized.streaming import (
    CLEARING_THREADS,
    clearing_blocks,
    clearing_kernel,
)
from cpembed.targets.cuda.writer import PARAMETERS, Writer

ARCHITECTURE = "sm_90"
"""Architecture that TVM generates text for; the text needs ``sm_90a``."""


def functions(plan: SpecializedPlan) -> dict[str, tuple[Writer, Launch]]:
    """Return the kernels of a plan by name, in the order in which they run."""
    product, kernels = plan.product, dict[str, tuple[Writer, Launch]]()

    def add(name: str, writer: Writer, blocks: int, threads: int, shared_bytes: int = 0) -> None:
        cluster = (plan.schedule.cluster_blocks if name == "product" else 1, 1, 1)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        launch = Launch(f"{name}_kernel", grid, block, shared_bytes, cluster)
        kernels[name] = writer, launch

    for number, name in enumerate(PARAMETERS):
        if plan.schedule.loads[number] == "bulk":
            images = PackedImages(plan, number)
            add(
                f"pack_{name}",
                images_kernel(images),
                packing_blocks(images.elements),
                PACKING_THREADS,
            )
        elif plan.packs(number):
            operand = plan.operand(number)
            blocks = packing_blocks(operand.layout.elements)
            add(f"pack_{name}", packing_kernel(operand, name), blocks, PACKING_THREADS)
    if plan.order.streamed:
        add("clear", clearing_kernel(plan), clearing_blocks(plan), CLEARING_THREADS)
    add("product", product_kernel(plan), plan.grid, plan.schedule.threads, plan.shared_bytes)
    if plan.schedule.splits > 1:
        blocks = -(-product.output.layout.elements // REDUCTION_THREADS)
        writer = reduction_kernel(product, plan.schedule.splits)
        add("reduction", writer, blocks, REDUCTION_THREADS)
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

"""Tensor Cores as a target: kernels are generated as CUDA text and executed here without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpembed.codegen.recorded import FunctionCalls
from cpembed.embedding.embedding import Embedding
from cpembed.hw.instruction import HardwareSpec
from cpembed.provenance import Provenance
from cpembed.runtime.measurement.runner import Timing
from cpembed.targets.base import Array, Details, Execution, Row, Target
from cpembed.targets.cuda.artifact import INSTRUCTIONS, CudaKernels, save
from cpembed.targets.cuda.build import cuda_text, function_calls
from cpembed.targets.cuda.executor import COMPILER, Counters, Order
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.model import Gpu, gpu
from cpembed.targets.cuda.schedule import KernelSchedule, Plan
from cpembed.targets.cuda.space import CudaSpace
from cpembed.transform.program import DerivedProgram

MACHINE = "a100"
"""GPU that schedules are chosen for by default."""


@dataclass(frozen=True)
class CudaDetails(Details):
    """Counters of a run, and its estimated time."""

    counters: Counters
    estimated_us: float
    gpu: str

    def to_json(self) -> dict[str, Any]:
        return {
            "estimated_us": self.estimated_us,
            "gpu": self.gpu,
            "counters": self.counters.to_json(),
        }

    def rows(self) -> list[Row]:
        counters = self.counters
        products = sum(counters.mma.values())
        loads, stores = counters.shared_load_wavefronts, counters.shared_store_wavefronts
        loaded, stored = counters.global_load_sectors, counters.global_store_sectors
        return [
            ("estimated", f"{self.estimated_us:.3g} us on {self.gpu}"),
            ("counted", f"{products:,} products of the instruction"),
            ("shared", f"{loads:,} wavefronts of loads, {stores:,} of stores"),
            ("global", f"{loaded:,} sectors loaded, {stored:,} stored"),
        ]


class CudaTarget(Target[TiledProduct, KernelSchedule, CudaKernels]):
    """Emulated Tensor Cores; times are estimates for the GPU :data:`MACHINE`."""

    provenance = Provenance.EMULATED
    instructions = INSTRUCTIONS
    has_tensorir = True

    def __init__(self, spec: HardwareSpec) -> None:
        super().__init__(spec)
        self.machine = MACHINE

    @cached_property
    def gpu(self) -> Gpu:
        return gpu(self.spec, self.machine)

    def missing(self) -> tuple[str, ...]:
        return COMPILER.missing()

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> TiledProduct:
        return lower(program, self.spec, epilogue)

    def space(self, lowered: TiledProduct) -> CudaSpace:
        return CudaSpace(lowered, self.gpu)

    def build(self, lowered: TiledProduct, schedule: KernelSchedule) -> CudaKernels:
        plan = Plan(lowered, schedule)
        return CudaKernels(plan, cuda_text(plan, self.gpu.architecture))

    def tensorir(
        self, lowered: TiledProduct, schedule: KernelSchedule, constants: Mapping[str, Array]
    ) -> FunctionCalls:
        return function_calls(Plan(lowered, schedule), constants)

    def tvm_target(self) -> str:
        return "cuda"

    def execute(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Execution:
        # Two orders of the warps: a result that depends on the order is wrong.
        outputs = tuple(artifact.run(inputs, order) for order in (Order.REVERSE, Order.FORWARD))
        return Execution(outputs, self.provenance)

    def time(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Timing:
        return Timing(self.provenance, artifact.plan.product.program.unfused.macs, None)

    def save(self, artifact: CudaKernels, path: Path) -> None:
        save(artifact, path)

    def schedule_json(self, schedule: KernelSchedule) -> dict[str, Any]:
        document: dict[str, Any] = super().schedule_json(schedule)
        # Readers of documents know this member as ``ways``.
        return {("ways" if name == "layouts" else name): v for name, v in document.items()}

    def schedule_text(self, embedding: Embedding, schedule: KernelSchedule) -> str:
        return str(schedule)

    def describe(self, artifact: CudaKernels, timing: Timing) -> CudaDetails:
        scored = self.space(artifact.plan.product).scored(artifact.plan.schedule)
        return CudaDetails(artifact.counters, scored.cost, self.machine)

    def executed_by(self, artifact: CudaKernels) -> str:
        return "emulated CUDA"

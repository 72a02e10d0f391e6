"""Execution, saving and packing of kernels, for all targets whose artifacts are CUDA texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cpembed.errors import BackendUnavailable
from cpembed.provenance import Provenance
from cpembed.targets.base import Array, Execution, Target
from cpembed.targets.cuda import compiling
from cpembed.targets.cuda.build import CudaKernels
from cpembed.targets.cuda.compiling import architectures_of
from cpembed.targets.cuda.emulator.executor import Order
from cpembed.targets.cuda.joined import JoinedKernels, Part, joined_cases
from cpembed.targets.cuda.pack.packing import pack_layer, pack_programs
from cpembed.targets.cuda.pack.results import read_results
from cpembed.targets.cuda.remote.report import markdown
from cpembed.targets.cuda.saving.cases import Case, cases_of
from cpembed.targets.cuda.saving.folder import (
    INSTRUCTIONS,
    SavedKernel,
    identifier,
    save,
    save_torch,
)
from cpembed.targets.cuda.warp_specialized.schedule import SpecializedPlan
from cpembed.targets.outputs import PackedLayer

L = TypeVar("L")
S = TypeVar("S")

ORDERS = (Order.REVERSE, Order.FORWARD)
"""Orders of the warps in which kernels are executed: a result that depends on it is wrong."""

MACS_PER_SECOND = 2**29
"""Multiply-accumulates that the emulator executes in a second: a product of 2,048 of them takes
some three microseconds."""

LONGEST_SECONDS = 24 * 3600
"""Estimated seconds beyond which nothing is emulated."""


class SavingTarget(Target[L, S, CudaKernels]):
    """Abilities of a target whose artifacts are :class:`CudaKernels`."""

    provenance = Provenance.EMULATED
    instructions = INSTRUCTIONS
    takes_epilogues = True
    channels_last = True

    def require_executable(self, macs: int) -> None:
        # Two orders of threads, on random and on special values; padding takes longer.
        seconds = 4 * macs / MACS_PER_SECOND
        if seconds > LONGEST_SECONDS:
            raise BackendUnavailable(
                f"emulating {macs:,} multiply-accumulates takes some {seconds / 3600:,.0f} hours: "
                "take smaller sizes, and `cpembed solve --estimate` for the time of these"
            )

    def execute(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Execution:
        outputs, *seconds = zip(*(artifact.outputs(inputs, o) for o in ORDERS), strict=True)
        return Execution(outputs, self.provenance, *seconds)

    def joined(self, artifacts: Mapping[str, CudaKernels], shape: Sequence[int]) -> JoinedKernels:
        programs = (artifact.plan.product.program for artifact in artifacts.values())
        self.require_executable(sum(program.unfused.macs for program in programs))
        return JoinedKernels.from_parts(artifacts, shape)

    def execute_joined(self, joined: JoinedKernels, inputs: Mapping[str, Array]) -> Execution:
        outputs = tuple(joined.run(inputs, order) for order in ORDERS)
        return Execution(outputs, self.provenance)

    def save_joined(
        self, joined: JoinedKernels, parts: Sequence[Part], path: Path, about: Mapping[str, Any]
    ) -> None:
        kernel = SavedKernel(
            name=identifier(path.name),
            text=joined.text,
            inputs=joined.inputs,
            outputs=[joined.output],
            prepares=joined.prepares,
            cases=joined_cases(parts, joined.output.shape),
            macs=sum(workload.macs for workload, _ in parts),
            about={**about, **self._described},
        )
        save(kernel, path)

    @property
    def _described(self) -> dict[str, Any]:
        return {"target": self.spec.name, "machine": self.described_machine}

    def executed_by(self, artifact: CudaKernels) -> str:
        return "emulated CUDA"

    def save(self, artifact: CudaKernels, path: Path) -> None:
        product = artifact.plan.product
        cases = cases_of(product.program.unfused, product.epilogue)
        save(self.saved(artifact, identifier(path.name), cases), path)

    def save_torch(self, path: Path) -> None:
        save_torch(path)

    def pack_layer(self, layer: PackedLayer, root: Path) -> None:
        pack_layer(self, self.saved, layer, root)

    def missing_to_pack(self) -> str | None:
        return compiling.missing()

    def pack_programs(self, root: Path) -> None:
        pack_programs(root)

    def measured_report(self, document: Mapping[str, Any]) -> str:
        return markdown(read_results(document))

    def saved(self, artifact: CudaKernels, name: str, cases: Sequence[Case]) -> SavedKernel:
        """Return kernels with everything that a folder says of them."""
        plan = artifact.plan
        program, epilogue = plan.product.program, plan.product.epilogue
        # In the workload's order: the factors of a kernel may be exchanged.
        order = {operand.tensor: n for n, operand in enumerate(program.unfused.inputs)}
        supported = architectures_of(
            plan.product.instruction, bulk=isinstance(plan, SpecializedPlan)
        )
        return SavedKernel(
            name=name,
            text=replace(artifact.text, architectures=supported),
            inputs=sorted(artifact.operands(), key=lambda tensor: order.get(tensor.tensor, 9)),
            outputs=artifact.results(),
            prepares=artifact.prepares(),
            cases=cases,
            macs=program.unfused.macs,
            about={
                "workload": str(program.unfused),
                "sizes": dict(program.unfused.extents),
                "epilogue": None if epilogue is None else str(epilogue),
                **self._described,
                "embedding": program.embedding.to_json(),
                "schedule": str(plan.schedule),
            },
        )

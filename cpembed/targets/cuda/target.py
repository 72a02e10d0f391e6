"""Tensor Cores as a target: kernels are generated as CUDA text and executed here without a GPU.

Their schedules are ranked by estimates on a described GPU.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, TypeVar

import msgspec

from cpembed.codegen.recorded import FunctionCalls
from cpembed.errors import LoweringError
from cpembed.runtime.measurement.runner import Timing
from cpembed.runtime.tuning.database import PlainTrial
from cpembed.runtime.tuning.space import Scored
from cpembed.targets.base import Array, Details, Row
from cpembed.targets.cuda.build import CudaKernels, cuda_text, function_calls
from cpembed.targets.cuda.chains.target import ChainTarget, counter_rows
from cpembed.targets.cuda.emulator.executor import COMPILER, Counters
from cpembed.targets.cuda.lower import TiledProduct, lower
from cpembed.targets.cuda.model import Gpu, estimate
from cpembed.targets.cuda.multistage.schedule import KernelSchedule, Plan, check
from cpembed.targets.cuda.multistage.space import (
    COLUMN_TILES,
    RASTER_GROUPS,
    ROW_TILES,
    SPLITS,
    WARPS,
    RefinedSpace,
    leaves_half_idle,
)
from cpembed.targets.cuda.multistage.traffic import work_of
from cpembed.targets.cuda.tuning import MEASURED, CudaTuner
from cpembed.targets.cuda.warp_specialized.build import cuda_text as bulk_text
from cpembed.targets.cuda.warp_specialized.limits import check as check_bulk
from cpembed.targets.cuda.warp_specialized.schedule import (
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.transform.program import DerivedProgram

DEPTHS = (1, 2, 4)
STAGES = (2, 3, 4)

L = TypeVar("L")
S = TypeVar("S")

AnySchedule = KernelSchedule | SpecializedSchedule
"""Schedule of a kernel whose warps copy by ``cp.async``, or are fed by bulk copies."""


class CudaSpace(RefinedSpace[AnySchedule]):
    """Schedules of a product that fit a GPU, ranked by their estimated times.

    Refinements are groups of blocks and splits. On GPUs that have bulk copies, ``mma.sync`` has
    both kinds of kernels.
    """

    refined = 40
    choices: ClassVar[Mapping[str, Sequence[object]]] = {
        "warps": WARPS,
        "tile": tuple(itertools.product(ROW_TILES, COLUMN_TILES)),
        "depth": DEPTHS,
        "stages": STAGES,
        "group": RASTER_GROUPS,
        "splits": SPLITS,
    }

    def __init__(self, product: TiledProduct, gpu: Gpu) -> None:
        super().__init__(product, gpu)
        self.bulk: SpecializedSpace | None = None
        if product.instruction.kind == "mma" and gpu.has_bulk_copies:
            self.bulk = SpecializedSpace(SpecializedProduct(product), gpu)

    @property
    def product(self) -> TiledProduct:
        return self.tiled

    @property
    def product_units(self) -> int:
        # Each scheduler has a tensor core.
        return self.gpu.unit.schedulers

    def first_blocks(self, count: int) -> list[Scored[AnySchedule]]:
        """Return the first schedules of different groups, of the smallest estimates."""
        first: dict[object, Scored[AnySchedule]] = {}
        for item in self.ranked():
            first.setdefault(self.group(item.schedule), item)
            if len(first) == count:
                break
        return list(first.values())

    def scored(self, schedule: AnySchedule) -> Scored[AnySchedule]:
        if isinstance(schedule, SpecializedSchedule):
            return self._bulk.scored(schedule)
        plan = Plan(self.product, schedule)
        check(plan, self.gpu.shared_bytes)
        estimated = estimate(work_of(plan, self.gpu), self.gpu)
        return Scored(estimated.us, schedule, estimated.parts)

    @property
    def _bulk(self) -> SpecializedSpace:
        if self.bulk is None:
            raise LoweringError(
                f"{self.gpu.name} has no bulk copies for {self.product.instruction.name}"
            )
        return self.bulk

    def neighbour(self, schedule: AnySchedule, random: Random) -> AnySchedule | None:
        if isinstance(schedule, SpecializedSchedule):
            return self._bulk.neighbour(schedule, random)
        return super().neighbour(schedule, random)

    def plain(self) -> Iterator[Scored[AnySchedule]]:
        """Yield schedules without groups and splits."""
        yield from self.fitting(self._copied_by_warps())
        if self.bulk is not None:
            yield from self.bulk.plain()

    def _copied_by_warps(self) -> Iterator[KernelSchedule]:
        _, rows, columns, depth = self.product.tiles
        layouts = itertools.product(range(len(self.product.first)), range(len(self.product.second)))
        for pair, warps, tile, deep, stages in itertools.product(
            list(layouts),
            WARPS,
            itertools.product(_useful(ROW_TILES, rows), _useful(COLUMN_TILES, columns)),
            _useful(DEPTHS, depth),
            STAGES,
        ):
            schedule = KernelSchedule(warps, tile, deep, stages, layouts=pair)
            if not any(map(leaves_half_idle, schedule.block, (rows, columns))):
                yield schedule

    def refinements(self, schedule: AnySchedule) -> Iterator[Scored[AnySchedule]]:
        """Yield a schedule with groups and splits."""
        if isinstance(schedule, SpecializedSchedule):
            yield from self._bulk.refinements(schedule)
            return
        # Results that are placed in a larger buffer have no splits.
        yield from self.fitting(
            replace(schedule, group=group, splits=splits)
            for group, splits in self.splits_of(schedule.depth)
        )

    def rank(self, item: Scored[AnySchedule]) -> tuple[float, ...]:
        # Of equal estimates, the schedule whose blocks wait less comes first.
        return round(item.cost, 3), item.parts["latency_us"]


def _useful(numbers: Sequence[int], extent: int) -> list[int]:
    """Return the numbers below twice the extent, beyond which nothing more is used."""
    return [number for number in numbers if number < 2 * extent] or [numbers[0]]


FIRST_LOSS, MEASURED_LOSS = 1.06, 1.02
"""Time of the mapping with the smallest estimate, and of the fastest of the first :data:`MEASURED`
schedules, over that of the fastest of all: geometric means of random halves of the schedules of six
layers that others measured on an A100 (experiments/amos2022/a100_schedules)."""


@dataclass(frozen=True)
class CudaDetails(Details):
    """Counters of a run, its estimated time, and the schedules of the smallest estimates."""

    counters: Counters
    estimated_us: float
    gpu: str
    first: tuple[tuple[str, float], ...] = ()
    """Text and estimated microseconds of :data:`MEASURED` schedules with different blocks."""

    def to_json(self) -> dict[str, Any]:
        return {
            "estimated_us": self.estimated_us,
            "gpu": self.gpu,
            "measure": [{"schedule": text, "estimated_us": us} for text, us in self.first],
            "expected_loss": {"first": FIRST_LOSS, "best_measured": MEASURED_LOSS},
            "counters": self.counters.to_json(),
        }

    def rows(self) -> list[Row]:
        estimated = ("estimated", f"{self.estimated_us:.3g} us on {self.gpu}")
        return [estimated, *self._rows_to_measure(), *counter_rows(self.counters)]

    def _rows_to_measure(self) -> list[Row]:
        if len(self.first) < 2:
            return []
        times = ", ".join(f"{us:.3g}" for _, us in self.first)
        text = (
            f"the first {len(self.first)} on the GPU ({times} us by estimate): elsewhere the first "
            f"alone took {FIRST_LOSS} times as long as the best, the best of {MEASURED} "
            f"{MEASURED_LOSS} times"
        )
        return [("measure", text)]


class EmulatedTarget(ChainTarget[L, S]):
    """Emulated kernels of products; times are estimates for the first GPU of the specification."""

    follows_machine = True
    tuner = CudaTuner

    @property
    def described_machine(self) -> str | None:
        return next(iter(self.spec.machines), None)

    def missing(self) -> tuple[str, ...]:
        return COMPILER.missing()

    def time(self, artifact: CudaKernels, inputs: Mapping[str, Array]) -> Timing:
        # Emulation takes no time that says anything of a GPU; the estimate is in the details.
        return Timing(self.provenance, artifact.plan.product.program.unfused.macs, None)

    @abstractmethod
    def schedule_from(self, document: Mapping[str, Any]) -> S:
        """Return the schedule of :meth:`schedule_json`."""

    def schedule_of(self, trial: PlainTrial) -> S:
        return self.schedule_from(trial.schedule)


class CudaTarget(EmulatedTarget[TiledProduct, AnySchedule]):
    """Emulated Tensor Cores."""

    has_tensorir = True

    def lower(self, program: DerivedProgram, epilogue: Any = None) -> TiledProduct:
        return lower(program, self.spec, epilogue)

    def space(self, lowered: TiledProduct) -> CudaSpace:
        return CudaSpace(lowered, self.gpu)

    def build(self, lowered: TiledProduct, schedule: AnySchedule) -> CudaKernels:
        if isinstance(schedule, SpecializedSchedule):
            fed = SpecializedPlan(SpecializedProduct(lowered), schedule)
            check_bulk(fed, self.gpu.shared_bytes)
            return CudaKernels(fed, bulk_text(fed))
        plan = Plan(lowered, schedule)
        return CudaKernels(plan, cuda_text(plan, self.gpu.architecture))

    def tensorir(
        self, lowered: TiledProduct, schedule: AnySchedule, constants: Mapping[str, Array]
    ) -> FunctionCalls:
        if isinstance(schedule, SpecializedSchedule):
            # Relax passes buffers only, and no tensor maps of them.
            ranked = (item.schedule for item in self.space(lowered).ranked())
            schedule = next(each for each in ranked if isinstance(each, KernelSchedule))
        return function_calls(Plan(lowered, schedule), constants)

    def tvm_target(self) -> str:
        return "cuda"

    def schedule_json(self, schedule: AnySchedule) -> dict[str, Any]:
        document: dict[str, Any] = super().schedule_json(schedule)
        # Readers of documents know this member as ``ways``.
        return {("ways" if name == "layouts" else name): v for name, v in document.items()}

    def schedule_from(self, document: Mapping[str, Any]) -> AnySchedule:
        named = {("layouts" if name == "ways" else name): v for name, v in document.items()}
        return msgspec.convert(named, SpecializedSchedule if "loads" in named else KernelSchedule)

    def describe(self, artifact: CudaKernels, timing: Timing) -> CudaDetails:
        plan = artifact.plan
        assert isinstance(plan, Plan | SpecializedPlan)
        space = self.space(plan.product)
        scored = space.scored(plan.schedule)
        first = tuple((str(item.schedule), item.cost) for item in space.first_blocks(MEASURED))
        return CudaDetails(artifact.counters, scored.cost, self.gpu.name, first)

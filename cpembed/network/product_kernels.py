"""Which kernel computes a product on laid-out tensors, and the calls that it consists of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.emit import portable_plan
from cpembed.codegen.epilogue import Epilogue, Placement
from cpembed.codegen.recorded import RecordedCalls, Recorder, recorded_calls
from cpembed.codegen.runtime import thread_count
from cpembed.cost.candidate import Candidate
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.embedding.cpsat import Status
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.network.kernel_cache import Cache, Progress, digest_of, silent, source_digest
from cpembed.runtime.worker import call_each
from cpembed.targets.capabilities import calibration_digest, planned_kernel
from cpembed.targets.registry import open_target

Array = NDArray[Any]

FALLBACK = "axpy"
"""The instruction in whose terms a product is portable code where nothing embeds: a vector times a
number, which any processor has."""


_LANES = (16, 8, 4, 2, 1)
"""Numbers of lanes that are tried, in this order."""


@dataclass(frozen=True)
class Layer:
    """A kernel for a product: by the instruction of ``spec`` (None: portable code), of
    ``candidate`` by ``schedule``, as ``cost_us`` estimates it, packing and unpacking included
    (infinite where nothing estimates it). ``reason``: why it is not on the target that was asked
    for, or not by its instruction."""

    spec: HardwareSpec | None
    candidate: Candidate
    schedule: Any
    epilogue: Epilogue | None
    cost_us: float
    utilisation: float
    reason: str | None = None

    @property
    def is_native(self) -> bool:
        return self.spec is not None

    @property
    def target(self) -> str:
        """Its name, for people."""
        return "portable" if self.spec is None else self.spec.name

    @property
    def places(self) -> bool:
        """Whether its output can be stored in a larger buffer."""
        return self.epilogue is not None and self.epilogue.placement is not None

    @property
    def embedding(self) -> str:
        return self.candidate.embedding.identifier()


def choose_layer(
    workload: Computation,
    target: HardwareSpec,
    epilogue: Epilogue | None,
    timeout: float | None = None,
) -> Layer:
    """The kernel for a workload that stores an epilogue: on a target, one of its alternatives, or
    as portable code.

    An epilogue with a placement asks for a kernel that stores in a larger buffer; one that can is
    searched first.
    """
    options = KernelOptions(timeout=timeout)
    asked = Request(workload, target, options, epilogue=epilogue, explains=False)
    found = _chosen(asked)
    if isinstance(found, Selection) and found.plan.native:
        choice, spec = found.choice, found.solved.target
        cost = choice.estimated
        return Layer(
            spec,
            choice.candidate.candidate,
            choice.schedule,
            epilogue,
            float("inf") if cost is None else cost,
            choice.candidate.overheads.occupancy,
            None if spec == target else f"{target.name}: {_why(found)}",
        )
    reason = "; ".join(found.plan.missing) if isinstance(found, Selection) else found
    return _portable(workload, epilogue, reason)


def _chosen(asked: Request) -> Selection | str:
    """The choice, or why there is none."""
    try:
        found = choose(asked)
    except (LoweringError, BackendUnavailable, WorkloadError) as error:
        return str(error)
    if isinstance(found, Selection):
        return found
    if found.status is Status.INFEASIBLE:
        return "no embedding"
    return "no embedding found in time"


def _why(found: Selection) -> str:
    substitution = found.substitution
    if substitution is None or substitution.requested_cost is None:
        return "no embedding"
    return f"{substitution.requested_cost:.3g} us estimated"


def _portable(workload: Computation, epilogue: Epilogue | None, reason: str) -> Layer:
    """Portable code in terms of :data:`FALLBACK` with the workload's own element types, of as many
    lanes as leave the results in place where they have to be.

    Raises :class:`LoweringError` where no number does.
    """
    failed = LoweringError(f"{workload}: no kernel, not even a portable one")
    for lanes in _LANES:
        found = choose(
            Request(
                workload,
                _fallback(workload, lanes),
                KernelOptions(backend="generic"),
            )
        )
        if not isinstance(found, Selection):
            continue
        candidate = found.candidate
        try:
            portable_plan(candidate.program, 1, epilogue)
        except LoweringError as error:
            failed = error
            continue
        used = candidate.overheads.occupancy
        return Layer(None, candidate.candidate, None, epilogue, float("inf"), used, reason)
    raise failed


def _fallback(workload: Computation, lanes: int) -> HardwareSpec:
    """The fallback's instruction with so many lanes."""
    spec = load_hardware_spec(FALLBACK)
    types = [operand.dtype for operand in (*workload.inputs, workload.output)]
    names = [operand.name for operand in spec.instruction.computation.operands]
    dtypes = {name: (dtype,) for name, dtype in zip(names, types, strict=True)}
    (axis,) = spec.instruction.axes
    narrow = replace(axis, minimum=lanes, maximum=lanes)
    any_width = replace(spec.instruction, axes=(replace(axis, minimum=1),))
    computation = any_width.with_extents({axis.name: lanes})
    instruction = replace(spec.instruction, axes=(narrow,), computation=computation, dtypes=dtypes)
    return replace(spec, instruction=instruction)


def recorded(
    layer: Layer, epilogue: Epilogue | None, constants: Mapping[str, Array], threads: int = 0
) -> RecordedCalls:
    """The calls of a layer that stores an epilogue (with its placements); ``constants`` are the
    second factor, where it does not vary, and the vectors, in the workload's shapes."""
    return recorded_calls(_kernel(layer, epilogue, Recorder(threads)), (), constants)


def _kernel(layer: Layer, epilogue: Epilogue | None, recorder: Recorder) -> CompiledKernel:
    program = layer.candidate.program
    if layer.spec is None:
        plan = portable_plan(program, recorder.thread_count(), epilogue)
        return CompiledKernel(program, plan, layer.reason, epilogue, processor=recorder)
    target = open_target(layer.spec)
    lowered = target.lower(program, epilogue)
    kernel = planned_kernel(target, lowered, layer.schedule, recorder)
    if kernel is None:
        raise LoweringError(f"{layer.target} has no kernels that a library can hold")
    return kernel


_SOURCES = (
    *("ir", "hw", "embedding", "transform", "cost", "codegen", "targets", "driver"),
    "network/product_kernels.py",
)
"""What a search depends on."""


@dataclass(frozen=True)
class Wanted:
    """A workload that stores an epilogue; ``placed``: in a larger buffer."""

    workload: Computation
    epilogue: Epilogue | None
    placed: bool

    @property
    def searched(self) -> Epilogue | None:
        """The epilogue of the search: stored in its place where it is to be placed, whatever that
        place will be."""
        if not self.placed:
            return self.epilogue
        output = self.workload.output
        epilogue = self.epilogue or Epilogue(output.dtype)
        none = (0,) * len(output.shape)
        return replace(epilogue, placement=Placement.inside(output.shape, none, output.shape))


@dataclass
class Products:
    """Kernels on a target. ``timeout``: seconds of each search."""

    target: HardwareSpec
    cache: Cache
    timeout: float | None = None
    workers: int = 1
    found: dict[Wanted, Layer | None] = field(default_factory=dict["Wanted", "Layer | None"])

    def key(self, wanted: Wanted) -> str:
        constants = calibration_digest(open_target(self.target))
        sources = source_digest(_SOURCES)
        threads = thread_count()
        return digest_of("layer", wanted, self.target, constants, threads, self.timeout, sources)

    def search(self, wanted: Iterable[Wanted], progress: Progress) -> None:
        """Find the kernels that are not known yet."""
        missing: list[Wanted] = []
        for one in dict.fromkeys(wanted):
            if one in self.found:
                continue
            kept = self.cache.get(_Kept, self.key(one))
            if kept is not None:
                self.found[one] = kept.layer
            else:
                missing.append(one)
        total = len(missing)
        progress("choosing kernels", 0, total)
        search = partial(_search, self.target, self.timeout)
        for number, (one, layer) in enumerate(call_each(search, missing, self.workers), 1):
            self._keep(one, layer)
            progress("choosing kernels", number, total)

    def _keep(self, wanted: Wanted, layer: Layer | None) -> None:
        self.found[wanted] = layer
        self.cache.put(self.key(wanted), _Kept(layer))

    def layer(self, wanted: Wanted) -> Layer | None:
        """The kernel; None where there is none."""
        if wanted not in self.found:
            self.search([wanted], silent)
        return self.found[wanted]


@dataclass(frozen=True)
class _Kept:
    """The result of a search."""

    layer: Layer | None


def _search(target: HardwareSpec, timeout: float | None, wanted: Wanted) -> Layer | None:
    try:
        return choose_layer(wanted.workload, target, wanted.searched, timeout)
    except LoweringError:
        return None


def utilisation(workload: Computation, of_laid_out: float) -> float:
    """The useful share of what is executed for a product. A product on laid-out tensors, whose
    share is given, does not know which zeros were inserted into an image."""
    return of_laid_out * workload.useful_macs / workload.macs

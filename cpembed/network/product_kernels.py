"""Kernels of products: searched per combination of layouts, in parallel, and cached.

The driver's choice looks up tuned records; what it returns is kept, so that a network is searched
once and repeated blocks once in it.
"""

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
from cpembed.cost.ranking import Candidate
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
"""Instruction of portable code for products that embed nothing else: vector times number."""


# Numbers of lanes of portable code, in the order in which they are tried.
_LANES = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class ProductKernel:
    """Kernel of a product.

    Attributes
    ----------
    spec : HardwareSpec or None
        Target of the instruction; None for portable code.
    candidate : Candidate
    schedule : object
    epilogue : Epilogue or None
    cost_us : float
        Estimated microseconds, packing and unpacking included; infinite without an estimate.
    utilisation : float
        Fraction of the executed operations that are useful.
    reason : str, optional
        Why the kernel does not use the requested target or its instruction.
    """

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
        """Name of the target for people."""
        return "portable" if self.spec is None else self.spec.name

    @property
    def places(self) -> bool:
        """True if the output can be stored inside a larger buffer."""
        return self.epilogue is not None and self.epilogue.placement is not None

    @property
    def embedding(self) -> str:
        return self.candidate.embedding.identifier()


def choose_product_kernel(
    workload: Computation,
    target: HardwareSpec,
    epilogue: Epilogue | None,
    timeout: float | None = None,
) -> ProductKernel:
    """Choose a kernel that stores an epilogue: on a target, one of its alternatives, or portable.

    Parameters
    ----------
    workload : Computation
    target : HardwareSpec
    epilogue : Epilogue or None
        With a placement, a kernel that stores inside a larger buffer is preferred.
    timeout : float, optional
        Seconds of each search for embeddings.
    """
    options = KernelOptions(timeout=timeout)
    request = Request(workload, target, options, epilogue=epilogue, explains=False)
    selection = _choice_or_reason(request)
    if isinstance(selection, Selection) and selection.plan.native:
        choice, spec = selection.choice, selection.solved.target
        cost = choice.estimated
        return ProductKernel(
            spec=spec,
            candidate=choice.candidate.candidate,
            schedule=choice.schedule,
            epilogue=epilogue,
            cost_us=float("inf") if cost is None else cost,
            utilisation=choice.candidate.overheads.occupancy,
            reason=None if spec == target else f"{target.name}: {_alternative_reason(selection)}",
        )
    reason = "; ".join(selection.plan.missing) if isinstance(selection, Selection) else selection
    return _portable(workload, epilogue, reason)


def _choice_or_reason(request: Request) -> Selection | str:
    """Return the driver's selection, or the reason why there is none."""
    try:
        outcome = choose(request)
    except (LoweringError, BackendUnavailable, WorkloadError) as error:
        return str(error)
    if isinstance(outcome, Selection):
        return outcome
    if outcome.status is Status.INFEASIBLE:
        return "no embedding"
    return "no embedding found in time"


def _alternative_reason(selection: Selection) -> str:
    """Return why an alternative target was selected."""
    substitution = selection.substitution
    if substitution is None or substitution.requested_cost is None:
        return "no embedding"
    return f"{substitution.requested_cost:.3g} us estimated"


def _portable(workload: Computation, epilogue: Epilogue | None, reason: str) -> ProductKernel:
    """Return portable code for the workload's element types.

    The number of lanes has to leave the results in place. Raises :class:`LoweringError` if none
    does.
    """
    failed = LoweringError(f"{workload}: no kernel, not even a portable one")
    for lanes in _LANES:
        selection = choose(
            Request(
                workload,
                _fallback(workload, lanes),
                KernelOptions(backend="generic"),
            )
        )
        if not isinstance(selection, Selection):
            continue
        candidate = selection.candidate
        try:
            portable_plan(candidate.program, 1, epilogue)
        except LoweringError as error:
            failed = error
            continue
        occupancy = candidate.overheads.occupancy
        return ProductKernel(
            spec=None,
            candidate=candidate.candidate,
            schedule=None,
            epilogue=epilogue,
            cost_us=float("inf"),
            utilisation=occupancy,
            reason=reason,
        )
    raise failed


def _fallback(workload: Computation, lanes: int) -> HardwareSpec:
    """Return the fallback's instruction with a number of lanes."""
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


def recorded_kernel(
    kernel: ProductKernel,
    epilogue: Epilogue | None,
    constants: Mapping[str, Array],
    threads: int = 0,
) -> RecordedCalls:
    """Return the calls of a kernel.

    Parameters
    ----------
    kernel : ProductKernel
    epilogue : Epilogue or None
        Epilogue with its placements.
    constants : mapping from str to ndarray
        Vectors, and the second factor unless it varies, in the workload's shapes.
    threads : int, default 0
        Number of threads; 0 for the process's.
    """
    return recorded_calls(_kernel(kernel, epilogue, Recorder(threads)), (), constants)


def _kernel(kernel: ProductKernel, epilogue: Epilogue | None, recorder: Recorder) -> CompiledKernel:
    program = kernel.candidate.program
    if kernel.spec is None:
        plan = portable_plan(program, recorder.thread_count(), epilogue)
        return CompiledKernel(program, plan, kernel.reason, epilogue, processor=recorder)
    target = open_target(kernel.spec)
    lowered = target.lower(program, epilogue)
    compiled = planned_kernel(target, lowered, kernel.schedule, recorder)
    if compiled is None:
        raise LoweringError(f"{kernel.target} has no kernels that a library can hold")
    return compiled


# Packages and modules whose code a search depends on.
_SOURCES = (
    *("ir", "hw", "embedding", "transform", "cost", "codegen", "targets", "driver"),
    "network/product_kernels.py",
)


@dataclass(frozen=True)
class KernelRequest:
    """Workload that stores an epilogue; if ``placed``, inside a larger buffer."""

    workload: Computation
    epilogue: Epilogue | None
    placed: bool

    @property
    def searched(self) -> Epilogue | None:
        """Epilogue of the search.

        A placed one is placed where it is, since its final position does not influence the choice.
        """
        if not self.placed:
            return self.epilogue
        output = self.workload.output
        epilogue = self.epilogue or Epilogue(output.dtype)
        none = (0,) * len(output.shape)
        return replace(epilogue, placement=Placement.inside(output.shape, none, output.shape))


@dataclass
class ProductKernels:
    """Kernels of products on a target; ``timeout`` limits each search for embeddings, in
    seconds.
    """

    target: HardwareSpec
    cache: Cache
    timeout: float | None = None
    workers: int = 1
    kernels: dict[KernelRequest, ProductKernel | None] = field(
        default_factory=dict["KernelRequest", "ProductKernel | None"]
    )

    def key(self, request: KernelRequest) -> str:
        """Return the cache key of a search."""
        constants = calibration_digest(open_target(self.target))
        sources = source_digest(_SOURCES)
        threads = thread_count()
        return digest_of("layer", request, self.target, constants, threads, self.timeout, sources)

    def search(self, requests: Iterable[KernelRequest], progress: Progress) -> None:
        """Search the kernels that are not known yet, in parallel."""
        missing: list[KernelRequest] = []
        for request in dict.fromkeys(requests):
            if request in self.kernels:
                continue
            cached = self.cache.get(_CachedKernel, self.key(request))
            if cached is not None:
                self.kernels[request] = cached.kernel
            else:
                missing.append(request)
        total = len(missing)
        progress("choosing kernels", 0, total)
        search = partial(_search, self.target, self.timeout)
        for number, (request, kernel) in enumerate(call_each(search, missing, self.workers), 1):
            self._keep(request, kernel)
            progress("choosing kernels", number, total)

    def _keep(self, request: KernelRequest, kernel: ProductKernel | None) -> None:
        self.kernels[request] = kernel
        self.cache.put(self.key(request), _CachedKernel(kernel))

    def lookup(self, request: KernelRequest) -> ProductKernel | None:
        """Return the kernel of a request, searched if necessary; None if there is none."""
        if request not in self.kernels:
            self.search([request], silent)
        return self.kernels[request]


@dataclass(frozen=True)
class _CachedKernel:
    """Result of a search, in the cache."""

    kernel: ProductKernel | None


def _search(
    target: HardwareSpec, timeout: float | None, request: KernelRequest
) -> ProductKernel | None:
    try:
        return choose_product_kernel(request.workload, target, request.searched, timeout)
    except LoweringError:
        return None


def utilisation(workload: Computation, occupancy: float) -> float:
    """Return the useful fraction of the executed operations, zeros between elements discounted.

    ``occupancy`` is that of the physical product, which does not know about such zeros.
    """
    return occupancy * workload.useful_macs / workload.macs

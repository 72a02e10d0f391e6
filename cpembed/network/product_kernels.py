"""Kernels of products: searched per combination of layouts, in parallel, and cached.

The driver chooses, tuned records included. Its choices are cached on disk, so a network is searched
once, and a block that repeats within it too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

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
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.graph.graph import Array
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.network.kernel_cache import Cache, digest_of, source_digest
from cpembed.runtime.tuning.records import Lookup
from cpembed.runtime.worker import call_each
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import calibration_digest, planned_kernel
from cpembed.targets.choice import Choice
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import record_identity

# Specification of portable code for products that embed nothing else: vector times number.
_FALLBACK = "axpy"

# Numbers of lanes of portable code in the order in which they are searched: wide vectors are
# faster, and one lane embeds in every product.
_LANES = (16, 8, 4, 2, 1)


@dataclass(frozen=True)
class ProductKernel:
    """Kernel of a product.

    Attributes
    ----------
    spec : HardwareSpec or None
        Target of the instruction; None for portable code.
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
        """True unless the kernel is portable code."""
        return self.spec is not None

    @property
    def target(self) -> str:
        """Name of the target, for reports."""
        return "portable" if self.spec is None else self.spec.name

    @property
    def places(self) -> bool:
        """True if the output can be stored inside a larger buffer."""
        return self.epilogue is not None and self.epilogue.placement is not None

    @property
    def embedding(self) -> str:
        """Identifier of the embedding."""
        return self.candidate.embedding.identifier()


def choose_product_kernel(
    workload: Computation,
    target: HardwareSpec,
    epilogue: Epilogue | None,
    timeout: float | None = None,
) -> ProductKernel:
    """Choose a kernel that stores an epilogue: a target's, an alternative's, or portable code.

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
    # No explanation is needed if nothing embeds: the product becomes portable code.
    request = Request(workload, target, options, epilogue=epilogue, explains=False)
    selection = _choice_or_reason(request)
    if isinstance(selection, Selection) and selection.plan.native:
        return _native(selection, selection.choice, target, epilogue)
    reason = "; ".join(selection.plan.missing) if isinstance(selection, Selection) else selection
    return _portable(workload, epilogue, reason)


def choose_in_place(
    workload: Computation, target: HardwareSpec, in_place: Collection[str], timeout: float | None
) -> ProductKernel | None:
    """Choose a native kernel that takes some operands where they lie; None if there is none.

    Parameters
    ----------
    workload : Computation
    target : HardwareSpec
    in_place : collection of str
        Names of the operands.
    timeout : float or None
        Seconds of each search for embeddings.
    """
    options = KernelOptions(timeout=timeout)
    selection = _choice_or_reason(Request(workload, target, options, explains=False))
    if not (isinstance(selection, Selection) and selection.plan.native):
        return None
    for choice in selection.plan.choices:
        program = choice.candidate.program
        if all(program.operand(name).is_identity for name in in_place):
            return _native(selection, choice, target, None)
    return None


def _native(
    selection: Selection, choice: Choice, target: HardwareSpec, epilogue: Epilogue | None
) -> ProductKernel:
    """Return a choice of the driver as a kernel."""
    spec, cost = selection.solved.target, choice.estimated
    return ProductKernel(
        spec=spec,
        candidate=choice.candidate.candidate,
        schedule=choice.schedule,
        epilogue=epilogue,
        cost_us=float("inf") if cost is None else cost,
        utilisation=choice.candidate.overheads.occupancy,
        reason=None if spec == target else f"{target.name}: {_alternative_reason(selection)}",
    )


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

    Raises :class:`LoweringError` if no number of lanes leaves the results in place.
    """
    failure = LoweringError(f"{workload}: no kernel, not even a portable one")
    for lanes in _LANES:
        spec = _portable_target(workload, lanes)
        selection = choose(Request(workload, spec, KernelOptions(backend="generic")))
        if not isinstance(selection, Selection):
            continue
        candidate = selection.candidate
        try:
            # Rejects an epilogue if this number of lanes does not leave the results in place.
            portable_plan(candidate.program, 1, epilogue)
        except LoweringError as error:
            failure = error
            continue
        return ProductKernel(
            spec=None,
            candidate=candidate.candidate,
            schedule=None,
            epilogue=epilogue,
            cost_us=float("inf"),
            utilisation=candidate.overheads.occupancy,
            reason=reason,
        )
    raise failure


def _portable_target(workload: Computation, lanes: int) -> HardwareSpec:
    """Return the portable instruction for a number of lanes and the workload's element types."""
    spec = load_hardware_spec(_FALLBACK)
    types = [operand.dtype for operand in (*workload.inputs, workload.output)]
    names = [operand.name for operand in spec.instruction.computation.operands]
    dtypes = {name: (dtype,) for name, dtype in zip(names, types, strict=True)}
    (axis,) = spec.instruction.axes
    narrow = replace(axis, minimum=lanes, maximum=lanes)
    # with_extents takes only sizes that the axis allows, and the specification fixes one.
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
    """Return the calls of a kernel, with the constants that they read packed.

    Parameters
    ----------
    kernel : ProductKernel
    epilogue : Epilogue or None
        Epilogue with its placements.
    constants : mapping from str to ndarray
        Vectors, and the second factor unless it varies, in the workload's shapes.
    threads : int, default 0
        Number of threads; 0 for the process's.

    Raises
    ------
    LoweringError
        If the target has no kernels that a library can hold.
    """
    return recorded_calls(planned_product(kernel, epilogue, Recorder(threads)), (), constants)


def planned_product(
    kernel: ProductKernel, epilogue: Epilogue | None, recorder: Recorder
) -> CompiledKernel:
    """Return a kernel that a recorder executes.

    Parameters
    ----------
    kernel : ProductKernel
    epilogue : Epilogue or None
        Epilogue with its placements.
    recorder : Recorder

    Raises
    ------
    LoweringError
        If the target has no kernels that a library can hold.
    """
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


# Packages and modules whose code a search depends on: a change of one invalidates cached kernels.
_SOURCES = (
    *("ir", "hw", "embedding", "transform", "cost", "codegen", "targets", "driver"),
    "network/product_kernels.py",
)


@dataclass(frozen=True)
class KernelRequest:
    """Workload whose results go through an epilogue; if ``placed``, into a larger buffer.

    Operands in ``in_place`` are read or written where they lie: there is no kernel that packs one,
    and none of portable code.
    """

    workload: Computation
    epilogue: Epilogue | None
    placed: bool
    in_place: tuple[str, ...] = ()

    @property
    def searched(self) -> Epilogue | None:
        """Epilogue of the search, placed in a buffer of the results' own shape.

        The final position does not influence the choice, so layouts that differ only in their halo
        share one search.
        """
        if not self.placed:
            return self.epilogue
        output = self.workload.output
        epilogue = self.epilogue or Epilogue(output.dtype)
        none = (0,) * len(output.shape)
        return replace(epilogue, placement=Placement.inside(output.shape, none, output.shape))


@dataclass
class ProductKernels:
    """Kernels of products on a target.

    Attributes
    ----------
    timeout : float, optional
        Seconds of each search for embeddings.
    workers : int
        Number of processes that search.
    kernels : dict from KernelRequest to ProductKernel or None
        Results of the searches; None where there is no kernel.
    """

    target: HardwareSpec
    cache: Cache
    timeout: float | None = None
    workers: int = 1
    kernels: dict[KernelRequest, ProductKernel | None] = field(
        default_factory=dict["KernelRequest", "ProductKernel | None"]
    )

    def key(self, request: KernelRequest) -> str:
        """Return the cache key of a search, made of all that its result depends on."""
        # Another calibration, number of threads or version of the code may choose another kernel.
        constants = calibration_digest(open_target(self.target))
        sources = source_digest(_SOURCES)
        threads = thread_count()
        tuned = self._tuning_records(request)
        dependencies = (request, self.target, constants, threads, self.timeout, tuned, sources)
        return digest_of("product kernel", *dependencies)

    def _tuning_records(self, request: KernelRequest) -> list[tuple[str, str, int] | None]:
        """Return the record that the choice would take, of the target and of its alternatives."""
        records: list[tuple[str, str, int] | None] = []
        for spec in (self.target, *map(load_hardware_spec, self.target.alternatives)):
            identity = None
            with suppress(BackendUnavailable, WorkloadError):
                lookup = Lookup(request.workload, request.searched, None)
                identity = record_identity(open_target(spec), lookup)
            records.append(identity)
        return records

    def search(self, requests: Iterable[KernelRequest], progress: Progress) -> None:
        """Search the kernels that are not in memory or in the cache, in parallel."""
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
            self.kernels[request] = kernel
            # Stored one by one, so that an interrupted command continues where it stopped.
            self.cache.store(self.key(request), _CachedKernel(kernel))
            progress("choosing kernels", number, total)

    def lookup(self, request: KernelRequest) -> ProductKernel | None:
        """Return the kernel of a request, searched if necessary; None if there is none."""
        if request not in self.kernels:
            self.search([request], silent)
        return self.kernels[request]


@dataclass(frozen=True)
class _CachedKernel:
    """Result of a search in the cache, which tells "no kernel" from "not searched"."""

    kernel: ProductKernel | None


def _search(
    target: HardwareSpec, timeout: float | None, request: KernelRequest
) -> ProductKernel | None:
    try:
        if request.in_place:
            return choose_in_place(request.workload, target, request.in_place, timeout)
        return choose_product_kernel(request.workload, target, request.searched, timeout)
    except LoweringError:
        return None


def family_text(embedding: Embedding) -> str:
    """Describe which axes of the workload feed each axis of the instruction."""
    family = embedding.family
    return ", ".join(f"{axis}: {' '.join(axes) or '-'}" for axis, axes in family.items())


def utilisation(workload: Computation, occupancy: float) -> float:
    """Return the useful fraction of the executed operations.

    ``occupancy`` is that of the physical product, which counts multiplications by the zeros that a
    transposed convolution inserts between elements.
    """
    return occupancy * workload.useful_macs / workload.macs

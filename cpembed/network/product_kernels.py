"""Kernels of products: searched per combination of layouts, in parallel, and cached.

The driver chooses, tuned records included. Its choices are cached on disk, so a network is searched
once, and a block that repeats within it too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

from cpembed.codegen.emit import portable_plan
from cpembed.codegen.epilogue import RESULT_TYPES, Epilogue
from cpembed.codegen.host_cpu import named_processor
from cpembed.codegen.placement import Placement
from cpembed.codegen.runtime import thread_count
from cpembed.driver.options import KernelOptions
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.embedding.cpsat import Status
from cpembed.embedding.embedding import Embedding
from cpembed.errors import BackendUnavailable, LoweringError, WorkloadError
from cpembed.hw.instruction import HardwareSpec
from cpembed.hw.loader import load_hardware_spec
from cpembed.ir.computation import Computation
from cpembed.network.factor_extension import extension_us, with_words
from cpembed.network.kernel_cache import Cache, digest_of, source_digest
from cpembed.network.product_kernel import CachedKernel, ProductKernel
from cpembed.network.shared_choices import Choice, proven_kernel, read_choices
from cpembed.runtime.tuning.records import Lookup
from cpembed.runtime.worker import call_each
from cpembed.steps import Progress, silent
from cpembed.targets.capabilities import calibration_digest, least_us
from cpembed.targets.registry import open_target
from cpembed.targets.tuner import record_identity
from cpembed.targets.units import Units, with_alternatives

# Specification of portable code for products that embed nothing else: vector times number.
_NOT_IN_TIME = "no embedding found in time"
"""Reason of a search that a limit stopped."""

_FALLBACK = "axpy"

# Numbers of lanes of portable code in the order in which they are searched: wide vectors are
# faster, and one lane embeds in every product.
_LANES = (16, 8, 4, 2, 1)


def choose_product_kernel(
    workload: Computation,
    units: Units,
    epilogue: Epilogue | None,
    timeout: float | None = None,
    *,
    in_place: Collection[str] = (),
) -> ProductKernel:
    """Choose a kernel that stores an epilogue: the fastest unit's by estimate, or portable code.

    Parameters
    ----------
    workload : Computation
    units : Units
        Targets that are searched, each with its alternatives. A named one is preferred to all that
        it does not name.
    epilogue : Epilogue or None
        With a placement, a kernel that stores inside a larger buffer is preferred.
    timeout : float, optional
        Seconds of each search for embeddings.
    in_place : collection of str
        Operands that the kernel reads or writes where they lie. With any, portable code is none.

    Raises
    ------
    LoweringError
        If there is no kernel.
    """
    candidates = units.candidates([operand.dtype for operand in workload.inputs])
    if in_place:
        # The fastest one of a target's alternatives may be none that takes an operand in place.
        candidates = [each for spec in candidates for each in with_alternatives(spec)]
    best = None if in_place else _extended(workload, units, epilogue, timeout)
    reasons: list[str] = []
    stopped = False
    if units.named is not None and units.named not in candidates:
        reasons.append(f"{units.name}: {_types_text(workload)} is not multiplied")
    for spec in candidates:
        # What cannot be faster, by its own model, is not searched.
        if best is not None and _least_us(spec, workload, best) >= best.cost_us:
            continue
        kernel = _kernel_on(spec, workload, epilogue, timeout, in_place)
        if isinstance(kernel, str):
            stopped = stopped or kernel == _NOT_IN_TIME
            reasons.append(f"{spec.name}: {kernel}")
        elif best is None or kernel.cost_us < best.cost_us:
            best = kernel
        # Whoever names a target wants it, even where another unit is faster.
        if spec == units.named and best is not None:
            break
    if best is None:
        reason = "; ".join(reasons) or f"no unit multiplies {_types_text(workload)}"
        if in_place:
            raise LoweringError(f"{workload}: no kernel takes {', '.join(in_place)}: {reason}")
        return replace(_portable(workload, epilogue, reason), stopped=stopped)
    # A named target that does not run is the reason to name; of equal units none is.
    preferred = reasons if units.named is not None else []
    return replace(best, reason="; ".join([*preferred, *filter(None, [best.reason])]) or None)


def _extended(
    workload: Computation, units: Units, epilogue: Epilogue | None, timeout: float | None
) -> ProductKernel | None:
    """Return the fastest kernel that reads the bytes of the first factor as 16 bits; None if none.

    A target that is named multiplies the types that it is named for.
    """
    wide = with_words(workload)
    if wide is None or units.named is not None:
        return None
    candidates, bytes_too = (
        units.candidates([operand.dtype for operand in each.inputs]) for each in (wide, workload)
    )
    # Dot products of bytes themselves are faster where the processor has them.
    least = min((least_us(open_target(spec), workload) for spec in bytes_too), default=math.inf)
    candidates = [spec for spec in candidates if least_us(open_target(spec), wide) < least]
    best: ProductKernel | None = None
    for spec in candidates:
        kernel = _kernel_on(spec, wide, epilogue, timeout, ())
        if not isinstance(kernel, str) and (best is None or kernel.cost_us < best.cost_us):
            cost = kernel.cost_us + extension_us(spec, workload, thread_count())
            best = replace(kernel, cost_us=cost, extended=workload.inputs[0].dtype)
    return best


def _types_text(workload: Computation) -> str:
    return " by ".join(operand.dtype for operand in workload.inputs)


def least_unit_us(spec: HardwareSpec, workload: Computation) -> float:
    """Return a lower bound of the estimates of a target and its alternatives."""
    return min(least_us(open_target(each), workload) for each in with_alternatives(spec))


def _least_us(spec: HardwareSpec, workload: Computation, best: ProductKernel) -> float:
    """Return a lower bound of the estimates of a target that may be better than a kernel.

    Its alternatives are for products that it does not embed; what is embedded with an extended
    factor, it embeds too.
    """
    if best.extended is None:
        return least_unit_us(spec, workload)
    return least_us(open_target(spec), workload)


def _kernel_on(
    spec: HardwareSpec,
    workload: Computation,
    epilogue: Epilogue | None,
    timeout: float | None,
    in_place: Collection[str],
) -> ProductKernel | str:
    """Return a target's kernel, or an alternative's; the reason if there is none."""
    # No explanation is needed if nothing embeds: another unit, or portable code, stands in.
    options = KernelOptions(timeout=timeout)
    searched = replace(spec, alternatives=()) if in_place else spec
    request = Request(
        workload,
        searched,
        options,
        epilogue=epilogue,
        explains=False,
        # Of choices that read operands in place, the first one may be any.
        first_only=not in_place,
    )
    selection = _choice_or_reason(request)
    if not isinstance(selection, Selection):
        return selection
    if not selection.plan.native:
        return "; ".join(selection.plan.missing)
    choices = (
        choice
        for choice in (selection.plan.choices if in_place else [selection.choice])
        if all(choice.ranked.program.operand(name).is_identity for name in in_place)
    )
    choice, executing = next(choices, None), spec if in_place else selection.solved.target
    if choice is None:
        return f"{', '.join(in_place)} would be packed"
    cost = choice.estimated
    return ProductKernel(
        spec=executing,
        candidate=choice.ranked.candidate,
        schedule=choice.schedule,
        epilogue=epilogue,
        cost_us=float("inf") if cost is None else cost,
        utilisation=choice.ranked.overheads.occupancy,
        moved_bytes=choice.ranked.overheads.packing_bytes,
        reason=None if executing == spec else f"{spec.name}: {_alternative_reason(selection)}",
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
    return _NOT_IN_TIME


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
        candidate = selection.ranked
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
            moved_bytes=candidate.overheads.packing_bytes,
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


# Packages and modules whose code a search depends on: a change of one invalidates cached kernels.
_SOURCES = (
    *("ir", "hw", "embedding", "transform", "cost", "codegen", "targets", "driver"),
    *("network/product_kernels.py", "network/factor_extension.py", "network/operator_costs.py"),
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
    def is_possible(self) -> bool:
        """False if results have to be placed that no epilogue can store, such as float64."""
        has_epilogue = self.epilogue is not None
        return not self.placed or has_epilogue or self.workload.output.dtype in RESULT_TYPES

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
    """Kernels of products on the units of a processor.

    Attributes
    ----------
    units : Units
        Targets that are searched.
    cache : Cache
    timeout : float, optional
        Seconds of each search for embeddings.
    workers : int
        Number of processes that search.
    kernels : dict from KernelRequest to ProductKernel or None
        Results of the searches; None where there is no kernel.
    """

    units: Units
    cache: Cache
    timeout: float | None = None
    workers: int = 1
    kernels: dict[KernelRequest, ProductKernel | None] = field(
        default_factory=dict["KernelRequest", "ProductKernel | None"]
    )

    def key(self, request: KernelRequest) -> str:
        """Return the cache key of a search, made of all that its result depends on."""
        # Another calibration, number of threads or version of the code may choose another kernel.
        sources = source_digest(_SOURCES)
        threads = thread_count()
        tuned = self._tuning_records(request)
        dependencies = (request, self._units_digest, threads, self.timeout, tuned, sources)
        return digest_of("product kernel", *dependencies)

    @cached_property
    def _units_digest(self) -> str:
        return units_digest(self.units)

    @cached_property
    def _imported(self) -> Mapping[str, Choice]:
        """Choices of other machines by key."""
        return {choice.key: choice for choice in read_choices(self.cache)}

    def _tuning_records(self, request: KernelRequest) -> list[tuple[str, str, int] | None]:
        """Return the record that each choice would take, of targets and of their alternatives."""
        records: list[tuple[str, str, int] | None] = []
        candidates = self.units.candidates([o.dtype for o in request.workload.inputs])
        for spec in (each for leader in candidates for each in with_alternatives(leader)):
            identity = None
            with suppress(BackendUnavailable, WorkloadError):
                lookup = Lookup(request.workload, request.searched, None)
                identity = record_identity(open_target(spec), lookup)
            records.append(identity)
        return records

    def search(self, requests: Iterable[KernelRequest], progress: Progress) -> None:
        """Search the kernels that are not in memory or in the cache, in parallel."""
        missing: list[tuple[KernelRequest, Choice | None]] = []
        keys: dict[KernelRequest, str] = {}
        for request in dict.fromkeys(requests):
            if not request.is_possible:
                self.kernels[request] = None
            if request in self.kernels:
                continue
            key = keys[request] = self.key(request)
            cached = self.cache.get(CachedKernel, key)
            if cached is not None:
                self.kernels[request] = cached.kernel
            else:
                missing.append((request, self._imported.get(key)))
        total = len(missing)
        progress("choosing kernels", 0, total)
        search = partial(_search, self.units, self.timeout)
        searches = call_each(search, missing, self.workers)
        for number, ((request, _), kernel) in enumerate(searches, 1):
            self.kernels[request] = kernel
            # Stored one by one, so that an interrupted command continues where it stopped.
            self.cache.store(keys[request], CachedKernel(kernel))
            progress("choosing kernels", number, total)

    def lookup(self, request: KernelRequest) -> ProductKernel | None:
        """Return the kernel of a request, searched if necessary; None if there is none."""
        if request not in self.kernels:
            self.search([request], silent)
        return self.kernels[request]


def units_digest(units: Units) -> str:
    """Return the digest of the targets of a set and of the constants that estimates depend on.

    It does not depend on where their files are.
    """
    constants = [calibration_digest(open_target(spec)) for spec in units.leaders]
    named = None if units.named is None else units.named.name
    specs = [each for leader in units.leaders for each in with_alternatives(leader)]
    # The text of a specification leaves its memories and stride rules out.
    contents = [
        [getattr(spec, f.name) for f in fields(spec) if f.name != "path"]
        for spec in (*units.processor, *specs)
    ]
    # What the processor lacks of the targets' alternatives matters too.
    processor = named_processor()
    executing = None if processor is None else processor.name
    return digest_of(named, units.float_type, contents, constants, executing)


def _search(
    units: Units, timeout: float | None, task: tuple[KernelRequest, Choice | None]
) -> ProductKernel | None:
    """Return the kernel of a request, by an imported choice if that is proven to be one."""
    request, choice = task
    epilogue = request.searched
    if choice is not None:
        kernel = proven_kernel(choice, units, request.workload, epilogue, request.in_place)
        if kernel is not None:
            return kernel
    try:
        return choose_product_kernel(
            request.workload, units, epilogue, timeout, in_place=request.in_place
        )
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

"""Kernels of other libraries for the same layers, compared with kernels of this package.

A :class:`Baseline` prepares a layer's operands in its own layouts and runs the layer;
:func:`compare_interleaved` verifies it and times both sides, interleaved
(:mod:`cpembed.runtime.measurement.interleaved`). :func:`~cpembed.targets.capabilities.baselines`
names the baselines of a target. ``docs/benchmarks.md`` says how the comparison is kept fair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.packing import packed_before
from cpembed.errors import InvariantError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype
from cpembed.runtime.measurement.interleaved import (
    OUR_POOL,
    Interleaved,
    SpeedProbe,
    Work,
    time_interleaved,
)
from cpembed.runtime.measurement.runner import Quantiles, quantiles, wall_clock
from cpembed.runtime.measurement.verification import Expected, Verification
from cpembed.workloads.suites import DEFAULT_LAYOUT, Layer

Array = NDArray[Any]

Arrays = Mapping[str, NDArray[Any]]
"""Inputs by operand, in the workload's layouts, and the vectors of the epilogue, if it has any."""


# ------------------------------------------------------------------------------ baselines


@dataclass(frozen=True)
class Subject:
    """A workload with the operator and the complete sizes that it was made from.

    A library is called by these, not by a loop nest. ``stored`` is the epilogue of both sides; None
    leaves the output type to the library's fastest form.
    """

    workload: Computation
    operator: str
    settings: Mapping[str, object]
    stored: Epilogue | None = None

    @classmethod
    def from_layer(
        cls,
        layer: Layer,
        workload: Computation,
        layout: str = DEFAULT_LAYOUT,
        stored: Epilogue | None = None,
    ) -> Subject:
        """Return the subject of a suite's layer.

        Parameters
        ----------
        layer
            The layer.
        workload
            The layer's workload in ``layout``.
        layout
            Name of the layout.
        stored
            The epilogue, or None.
        """
        operator = layer.operator
        settings = operator.settings({**layer.parameters, **layer.layout_settings(layout)})
        return cls(workload, operator.name, settings, stored)


@dataclass(frozen=True)
class NotCovered:
    """The reason why a baseline cannot run a workload, in one sentence without a full stop."""

    reason: str


@dataclass(frozen=True)
class Primitives:
    """The parts of a call by a library's own account, in microseconds, averaged over calls.

    ``us`` is the computation. ``reorder_us`` copies activations into another layout, ``weights_us``
    weights, which could have been done ahead; neither is part of ``us``. ``names`` are the
    implementations that the library selected, in the order of execution.
    """

    us: float
    reorder_us: float
    weights_us: float
    names: tuple[str, ...]


class Contender(Protocol):
    """One form in which a baseline runs a workload, its operands packed and in place."""

    @property
    def form(self) -> str:
        """Name of the form with its output type: ``qconv2d_pointwise, f32 result``."""
        ...

    def run(self) -> Any:
        """Run the workload once."""
        ...

    def output(self) -> NDArray[Any]:
        """Return the result of a call in the shape of the workload's output.

        Its type may differ: sums as float32, saturated to 8 bits, or rounded to bfloat16.
        """
        ...

    def primitives(self, calls: int) -> Primitives | None:
        """Return the library's own times over so many calls; None if it keeps none."""
        ...


class Baseline(Protocol):
    """A library to compare with, loaded and ready."""

    @property
    def name(self) -> str: ...

    @property
    def pool(self) -> str:
        """Name of the thread pool: between kinds of work of one pool no pause is needed."""
        ...

    def identity(self) -> dict[str, str | None]:
        """Return versions and settings that its times depend on."""
        ...

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        """Return every form worth trying, of which the fastest is compared.

        Parameters
        ----------
        subject
            The workload.
        inputs
            Its inputs.
        """
        ...


# ------------------------------------------------------------------------------ comparison

# The kinds of work of a comparison, as its interleaved times name them.
_KERNEL, _PACKING, _CALL, _PRIMITIVE = "kernel", "kernel with packing", "call", "primitive"
_PRODUCTS = "products"

# Number of rounds that select a baseline's fastest form.
_TRIAL_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A verified form of a baseline, and the interleaved times of both sides.

    ``stored`` is the output type of both. ``names`` are the implementations that the library
    selected; ``reorder_us`` and ``weights_us`` its mean times for copying activations and weights
    in a call, which its primitive time does not include; None if the library keeps no account.
    ``share`` is the workload's number of products relative to the sample of products.
    """

    form: str
    stored: str
    names: tuple[str, ...]
    verification: Verification
    reorder_us: float | None
    weights_us: float | None
    interleaved: Interleaved
    share: float | None = None

    @property
    def kernel(self) -> Quantiles:
        """Microseconds of the kernel's contraction on packed operands."""
        return self.interleaved.times(_KERNEL)

    @property
    def kernel_with_packing(self) -> Quantiles:
        """Microseconds of a call that packs the inputs that are not, and unpacks the output."""
        return self.interleaved.times(_PACKING)

    @property
    def call(self) -> Quantiles:
        """Microseconds of a call of the baseline's form."""
        return self.interleaved.times(_CALL)

    @property
    def _has_primitive(self) -> bool:
        return _PRIMITIVE in self.interleaved.samples

    @property
    def primitive(self) -> Quantiles | None:
        """Microseconds of the library's computation by its own account."""
        return self.interleaved.times(_PRIMITIVE) if self._has_primitive else None

    @property
    def peak(self) -> Quantiles | None:
        """Microseconds of the workload's products alone, at the clock of these rounds."""
        if self.share is None:
            return None
        return quantiles([us * self.share for us in self.interleaved.samples[_PRODUCTS]])

    @property
    def primitive_over_peak(self) -> Quantiles | None:
        """Upper bound of any kernel's speed-up: the baseline's computation over :attr:`peak`."""
        if self.share is None or not self._has_primitive:
            return None
        ratio = self.interleaved.ratio(_PRIMITIVE, _PRODUCTS)
        # The sample of products is not the workload: `share` is the ratio of their numbers.
        return Quantiles(*(value / self.share for value in (ratio.median, ratio.p10, ratio.p90)))

    def call_ratio(self, *, packing: bool) -> Quantiles:
        """Return the baseline's call over ours, round by round: above 1 if ours is faster."""
        return self.interleaved.ratio(_CALL, _PACKING if packing else _KERNEL)

    def primitive_ratio(self, *, packing: bool) -> Quantiles | None:
        """Return the baseline's computation over ours; with our packing, its reorders count too."""
        if not self._has_primitive:
            return None
        if packing:
            return self.interleaved.ratio(_PRIMITIVE, _PACKING, self.reorder_us or 0.0)
        return self.interleaved.ratio(_PRIMITIVE, _KERNEL)


def compare_interleaved(
    kernel_of: Callable[[str], CompiledKernel],
    baseline: Baseline,
    subject: Subject,
    inputs: Arrays,
    *,
    seed: int = 0,
    rounds: int = 11,
    round_ms: float = 10.0,
    probe: SpeedProbe | None = None,
) -> Comparison | NotCovered:
    """Compare our kernel with the fastest right form of a baseline.

    Parameters
    ----------
    kernel_of
        Function that returns our kernel by its output type, which is that of the baseline's form:
        bytes take a quarter of the memory of sums.
    baseline
        The library.
    subject
        The workload. With an epilogue, both sides get the same random bias and scale.
    inputs
        Arrays by operand.
    seed
        Seed of bias and scale.
    rounds
        Number of rounds.
    round_ms
        Milliseconds of each kind of work in a round, roughly.
    probe
        The probe of the instruction: rounds in which it is slow are repeated, and its products are
        timed, too.

    Returns
    -------
    Comparison or NotCovered
        NotCovered if the baseline has no form of the workload, or only wrong ones.

    Raises
    ------
    InvariantError
        If our kernel's numbers are wrong.
    """
    expected = Expected(subject.workload, inputs)
    vectors = expected.vectors(subject.stored, seed)
    inputs = {**inputs, **vectors}
    contenders = baseline.contenders(subject, inputs)
    if isinstance(contenders, NotCovered):
        return contenders
    # All forms are verified before any is timed: the fastest one may be wrong.
    outputs = {contender.form: contender.output() for contender in contenders}
    judged = {
        form: expected.judge_converted(output, subject.stored, vectors)
        for form, output in outputs.items()
    }
    right = [contender for contender in contenders if judged[contender.form].verified]
    if not right:
        least = min(verification.max_error for verification in judged.values())
        return NotCovered(f"wrong by {least:g} or more in every form ({', '.join(judged)})")
    fastest = _fastest(right, baseline, round_ms)
    output_type = str(outputs[fastest.form].dtype)
    # Our kernel stores the baseline's type, so that both sides write equally many bytes.
    kernel = kernel_of(output_type)

    def judge(output: Array) -> Verification:
        if subject.stored is not None:
            return expected.judge_stored(output, subject.stored, vectors)
        return expected.judge_converted(output.view(numpy_dtype(output_type)))

    # Our numbers are checked too: a wrong kernel must not win.
    _verify(kernel, output_type, judge, inputs)
    account = _Account(fastest)
    sides = {
        _KERNEL: Work(wall_clock(_execution(kernel, inputs)), OUR_POOL),
        _PACKING: Work(wall_clock(_execution(kernel, inputs, packing=True)), OUR_POOL),
        _CALL: Work(wall_clock(fastest.run), baseline.pool),
    }
    if account.names is not None:
        sides[_PRIMITIVE] = Work(account, baseline.pool)
    unthrottled = None
    if probe is not None:
        sides[_PRODUCTS] = Work(wall_clock(probe.stretch), OUR_POOL)
        unthrottled = probe.wait
    interleaved = time_interleaved(sides, rounds=rounds, round_ms=round_ms, unthrottled=unthrottled)
    return Comparison(
        form=fastest.form,
        stored=output_type,
        names=account.names or (),
        verification=judged[fastest.form],
        reorder_us=account.mean_us("reorder_us"),
        weights_us=account.mean_us("weights_us"),
        interleaved=interleaved,
        share=None if probe is None else subject.workload.macs / probe.macs,
    )


def _verify(
    kernel: CompiledKernel,
    output_type: str,
    judge: Callable[[Array], Verification],
    inputs: Arrays,
) -> None:
    ahead = packed_before(kernel.program.workload)
    # Both are timed: the contraction on packed operands, and the call that packs.
    for output in (kernel.run(inputs), kernel.run_whole(inputs, ahead)):
        verification = judge(output)
        if not verification.verified:
            raise InvariantError(
                f"the {kernel.backend} kernel that stores {output_type} is wrong by up to "
                f"{verification.max_error:g} in {kernel.program.workload.name}: please report this"
            )


class _Account:
    """Library's account of its own computation, a sampler; ``names`` is None if it keeps none."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        # One call shows whether there is an account, and which implementations it names.
        first = contender.primitives(1)
        self.names = None if first is None else first.names
        self._blocks: list[tuple[int, Primitives]] = []

    def __call__(self, calls: int) -> float:
        primitives = self._contender.primitives(calls)
        if primitives is None:
            raise TypeError(f"{self._contender.form} keeps no account of its primitives")
        self._blocks.append((calls, primitives))
        return primitives.us

    def mean_us(self, part: Literal["reorder_us", "weights_us"]) -> float | None:
        """Return the mean of a part over all calls so far."""
        calls = sum(calls for calls, _ in self._blocks)
        total = sum(calls * getattr(primitives, part) for calls, primitives in self._blocks)
        return total / calls if calls else None


def _fastest(contenders: Sequence[Contender], baseline: Baseline, round_ms: float) -> Contender:
    """Return the fastest form by the library's own account, else by the clock."""
    if len(contenders) == 1:
        return contenders[0]

    def side(contender: Contender) -> Work:
        account = _Account(contender)
        has_account = account.names is not None
        return Work(account if has_account else wall_clock(contender.run), baseline.pool)

    sides = {contender.form: side(contender) for contender in contenders}
    trial = time_interleaved(sides, rounds=_TRIAL_ROUNDS, round_ms=round_ms, attempts=1)
    # Ratios within a round: times of different rounds may have different clocks.
    first = contenders[0].form
    return min(contenders, key=lambda contender: trial.ratio(contender.form, first).median)


def _execution(
    kernel: CompiledKernel, inputs: Arrays, *, packing: bool = False
) -> Callable[[], None]:
    """Return a call of the contraction on packed operands, whose weights are packed ahead.

    With ``packing`` it packs and unpacks as well.
    """
    workload = kernel.program.workload
    names = kernel.input_names
    packed = {name: kernel.pack(name, inputs[name]) for name in names}
    output = kernel.execute(packed)
    contraction = kernel.bound(packed, output)
    if not packing:
        return contraction
    return kernel.bound_whole(inputs, packed, packed_before(workload), output)

"""A kernel of ours beside a baseline's: the same numbers, then interleaved times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.packing import packed_before
from cpembed.errors import InvariantError
from cpembed.ir.dtypes import numpy_dtype
from cpembed.runtime.baselines.base import (
    Arrays,
    Baseline,
    Contender,
    NotCovered,
    Primitives,
    Subject,
)
from cpembed.runtime.measurement.interleaved import (
    OUR_POOL,
    Interleaved,
    SpeedProbe,
    Work,
    time_interleaved,
)
from cpembed.runtime.measurement.runner import Quantiles, quantiles, wall_clock
from cpembed.runtime.measurement.verification import Expected, Verification

Array = NDArray[Any]

_OURS, _PACKING, _CALL, _PRIMITIVE = "ours", "ours with packing", "call", "primitive"
_PRODUCTS = "products"

_TRIAL_ROUNDS = 3
"""Rounds that choose among a baseline's forms."""


@dataclass(frozen=True)
class Comparison:
    """A verified form of a baseline, and both sides' interleaved times; both store ``stored``.

    ``names`` are the implementations that the library chose, ``reorder_us`` and ``weights_us`` its
    moving of activations and of weights in a call (means), which its primitive time does not hold;
    None where the library keeps no account of itself. ``share``: of the products in the sample of
    such, those of the workload.
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
    def ours(self) -> Quantiles:
        """Microseconds of the contraction on packed operands."""
        return self.interleaved.times(_OURS)

    @property
    def ours_with_packing(self) -> Quantiles:
        """One call that also packs the inputs which are not packed ahead and unpacks the output."""
        return self.interleaved.times(_PACKING)

    @property
    def call(self) -> Quantiles:
        """One call of the baseline's form."""
        return self.interleaved.times(_CALL)

    @property
    def primitive(self) -> Quantiles | None:
        """What the library itself says that its computation took."""
        return (
            self.interleaved.times(_PRIMITIVE) if _PRIMITIVE in self.interleaved.samples else None
        )

    @property
    def peak(self) -> Quantiles | None:
        """The workload's products alone, on registers and all threads, at the clock of these
        rounds."""
        if self.share is None:
            return None
        return quantiles([us * self.share for us in self.interleaved.samples[_PRODUCTS]])

    @property
    def primitive_over_peak(self) -> Quantiles | None:
        """The baseline's computation over :attr:`peak` in the same round: what no kernel of the
        same products exceeds beside it."""
        if self.share is None or _PRIMITIVE not in self.interleaved.samples:
            return None
        found = self.interleaved.ratio(_PRIMITIVE, _PRODUCTS)
        return Quantiles(*(of / self.share for of in (found.median, found.p10, found.p90)))

    def call_ratio(self, *, packing: bool) -> Quantiles:
        """The baseline's call over ours, round by round: above 1 where ours is faster."""
        return self.interleaved.ratio(_CALL, _PACKING if packing else _OURS)

    def primitive_ratio(self, *, packing: bool) -> Quantiles | None:
        """The baseline's computation over ours; with our packing, its reorders count too."""
        if _PRIMITIVE not in self.interleaved.samples:
            return None
        if packing:
            return self.interleaved.ratio(_PRIMITIVE, _PACKING, self.reorder_us or 0.0)
        return self.interleaved.ratio(_PRIMITIVE, _OURS)


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
    """Compare our kernel with the fastest of a baseline's forms that are right.

    ``kernel_of`` gives ours by the type of the results that it stores: that of the baseline's form,
    since bytes take a quarter of the memory of sums. Where the subject says what is stored, both
    sides get the same bias and scale, random ones of ``seed``. :class:`NotCovered` where the
    baseline has no form of the workload, or only wrong ones. ``probe`` is that of the instruction:
    rounds in which it is slow are repeated, and its products are timed beside the others.

    Raises :class:`InvariantError` where our kernel's numbers are wrong.
    """
    expected = Expected(subject.workload, inputs)
    vectors = expected.vectors(subject.stored, seed)
    inputs = {**inputs, **vectors}
    contenders = baseline.contenders(subject, inputs)
    if isinstance(contenders, NotCovered):
        return contenders
    outputs = {one.form: one.output() for one in contenders}
    judged = {
        form: expected.judge_converted(found, subject.stored, vectors)
        for form, found in outputs.items()
    }
    right = [contender for contender in contenders if judged[contender.form].verified]
    if not right:
        least = min(found.max_error for found in judged.values())
        return NotCovered(f"wrong by {least:g} or more in every form ({', '.join(judged)})")
    chosen = _fastest(right, baseline, round_ms)
    stored = str(outputs[chosen.form].dtype)
    kernel = kernel_of(stored)

    def judge(found: Array) -> Verification:
        if subject.stored is not None:
            return expected.judge_stored(found, subject.stored, vectors)
        return expected.judge_converted(found.view(numpy_dtype(stored)))

    _verify(kernel, stored, judge, inputs)
    sides = {
        _OURS: Work(wall_clock(_execution(kernel, inputs)), OUR_POOL),
        _PACKING: Work(wall_clock(_execution(kernel, inputs, packing=True)), OUR_POOL),
        _CALL: Work(wall_clock(chosen.run), baseline.pool),
    }
    account = _Account(chosen)
    if account.names is not None:
        sides[_PRIMITIVE] = Work(account, baseline.pool)
    if probe is not None:
        sides[_PRODUCTS] = Work(wall_clock(probe.stretch), OUR_POOL)
    unthrottled = None if probe is None else probe.wait
    found = time_interleaved(sides, rounds=rounds, round_ms=round_ms, unthrottled=unthrottled)
    return Comparison(
        chosen.form,
        stored,
        account.names or (),
        judged[chosen.form],
        account.mean_us("reorder_us"),
        account.mean_us("weights_us"),
        found,
        None if probe is None else subject.workload.macs / probe.macs,
    )


def _verify(
    kernel: CompiledKernel, stored: str, judge: Callable[[Array], Verification], inputs: Arrays
) -> None:
    ahead = packed_before(kernel.program.workload)
    for found in (kernel.run(inputs), kernel.run_whole(inputs, ahead)):
        judged = judge(found)
        if not judged.verified:
            raise InvariantError(
                f"the {kernel.backend} kernel that stores {stored} is wrong by up to "
                f"{judged.max_error:g} in {kernel.program.workload.name}: please report this"
            )


class _Account:
    """What a library says of its own computation, as a
    :data:`~cpembed.runtime.measurement.runner.Sampler`; ``names`` is None where it says nothing."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        first = contender.primitives(1)
        self.names = None if first is None else first.names
        self._blocks: list[tuple[int, Primitives]] = []

    def __call__(self, calls: int) -> float:
        found = self._contender.primitives(calls)
        if found is None:
            raise TypeError(f"{self._contender.form} keeps no account of its primitives")
        self._blocks.append((calls, found))
        return found.us

    def mean_us(self, what: Literal["reorder_us", "weights_us"]) -> float | None:
        """The mean over all calls so far."""
        calls = sum(calls for calls, _ in self._blocks)
        spent = sum(calls * getattr(found, what) for calls, found in self._blocks)
        return spent / calls if calls else None


def _fastest(contenders: Sequence[Contender], baseline: Baseline, round_ms: float) -> Contender:
    """By what the library says of itself, else by the clock."""
    if len(contenders) == 1:
        return contenders[0]

    def side(contender: Contender) -> Work:
        account = _Account(contender)
        own = account.names is not None
        return Work(account if own else wall_clock(contender.run), baseline.pool)

    sides = {contender.form: side(contender) for contender in contenders}
    found = time_interleaved(sides, rounds=_TRIAL_ROUNDS, round_ms=round_ms, attempts=1)
    first = contenders[0].form
    return min(contenders, key=lambda contender: found.ratio(contender.form, first).median)


def _execution(
    kernel: CompiledKernel, inputs: Arrays, *, packing: bool = False
) -> Callable[[], None]:
    """A call of the contraction on packed operands; with ``packing`` also of what must happen to
    the data around it. Weights are packed ahead."""
    workload = kernel.program.workload
    names = kernel.input_names
    packed = {name: kernel.pack(name, inputs[name]) for name in names}
    output = kernel.execute(packed)
    contraction = kernel.bound(packed, output)
    if not packing:
        return contraction
    return kernel.bound_whole(inputs, packed, packed_before(workload), output)

"""Steps between sums and results as an epilogue of a kernel, where that is the same, every bit."""
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from cpembed.codegen.epilogue import BYTES, MAX_SHIFT, Epilogue, Residual
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.steps import Step, Term
from cpembed.ir.dtypes import dtype_info, is_integer

FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Stored:
    """An epilogue, None for the sums as they are, and what it takes: the terms whose sum is the
    ``bias``, the ``scale``, the ``residual``. ``positive``: it is the same only for scales that are
    positive."""

    epilogue: Epilogue | None
    bias: tuple[Term, ...] = ()
    scale: Term | None = None
    residual: Term | None = None
    positive: bool = False


def stored(
    steps: Sequence[Step], sums: str, channels: Collection[int], whole: Sequence[int]
) -> Stored:
    """What an epilogue stores in the place of steps on sums of a type: of their dimensions,
    ``channels`` are those that vectors move with, ``whole`` all of more than one step.

    Raises :class:`WorkloadError` for what is not the same as any epilogue, in words.
    """
    return _Reader(sums, channels, tuple(whole)).read(steps)


@dataclass
class _Reader:
    """What was read so far: the value is of type ``dtype``, and within ``low`` and ``high``."""

    dtype: str
    channels: Collection[int]
    whole: tuple[int, ...]
    bias: list[Term] = field(default_factory=list)
    scale: Term | None = None
    residual: Term | None = None
    shift: int = 0
    low: float | None = None
    high: float | None = None
    relu: bool = False
    last_relu: bool = False
    rounded: bool = False
    zero_point: int = 0
    positive: bool = False
    converted: str | None = None
    """The type of the result, once that is what the value has."""

    def __post_init__(self) -> None:
        self.sums = self.dtype

    def read(self, steps: Sequence[Step]) -> Stored:
        for step in steps:
            if self.converted is not None and not self._commutes(step):
                raise WorkloadError(f"{step.operation} follows the conversion to {self.converted}")
            reader: Callable[[Step], None] = getattr(self, f"_{step.operation}")
            reader(step)
        return Stored(self._epilogue(), tuple(self.bias), self.scale, self.residual, self.positive)

    def _commutes(self, step: Step) -> bool:
        """Whether a step after a conversion between floats is the same before it."""
        is_relu = step.operation == "maximum" and _number(step) == 0
        return self.converted in FLOATS and is_relu and self.sums in FLOATS

    @property
    def _in_integers(self) -> bool:
        return is_integer(self.dtype)

    @property
    def _untouched(self) -> bool:
        bounded = self.relu or self.low is not None or self.high is not None
        return not (self.shift or self.scale or bounded or self.rounded or self.residual)

    def _add(self, step: Step) -> None:
        term = step.term
        assert term is not None
        if self.rounded:
            self._move(term)
        elif not set(term.axes) <= set(self.channels):
            if term.axes != self.whole or self.residual is not None:
                raise WorkloadError("a tensor is added that is neither of the channels nor whole")
            if self.sums != "float32" or self.low is not None or self.high is not None:
                raise WorkloadError(f"another tensor is added to sums in {self.dtype}")
            self.residual = term
        elif self._untouched and self.dtype == self.sums:
            self.bias.append(term)
        else:
            raise WorkloadError("something is added after another step than an addition")

    def _move(self, term: Term) -> None:
        """By a zero point."""
        if not term.is_number or term.number != int(term.number):
            raise WorkloadError("what is added to rounded results is no whole number")
        moved = int(term.number)
        if self.relu:
            self.relu, self.low = False, max(0.0, self.low or 0.0)
        self.zero_point += moved
        self.low = None if self.low is None else self.low + moved
        self.high = None if self.high is None else self.high + moved

    def _multiply(self, step: Step) -> None:
        if self._in_integers:
            raise WorkloadError("sums are multiplied in integers")
        if self.scale is not None or self.rounded or self.residual is not None:
            raise WorkloadError("results are multiplied more than once, or late")
        if self.low is not None or self.high is not None:
            raise WorkloadError("results are limited before they are multiplied")
        assert step.term is not None
        if not set(step.term.axes) <= set(self.channels):
            raise WorkloadError("results are multiplied by a tensor that is not of the channels")
        self.scale = step.term
        self.positive = self.positive or self.relu

    def _maximum(self, step: Step) -> None:
        bound = _number(step)
        if self.residual is not None:
            if bound != 0:
                raise WorkloadError("results are limited after another tensor is added")
            self.last_relu = True
        elif bound == 0 and not self.rounded and self.low is None and self.high is None:
            self.relu = True
        else:
            low = bound if self.low is None else max(self.low, bound)
            self.low = low
            self.high = None if self.high is None else max(self.high, low)

    def _minimum(self, step: Step) -> None:
        bound = _number(step)
        if self.residual is not None:
            raise WorkloadError("results are limited after another tensor is added")
        self.high = bound if self.high is None else min(self.high, bound)
        self.low = None if self.low is None else min(self.low, self.high)

    def _shift(self, step: Step) -> None:
        amount = int(_number(step))
        if not self._in_integers or self.shift + amount > MAX_SHIFT or amount < 0:
            raise WorkloadError("results are shifted by more than their bits")
        self.shift += amount
        # A shift is monotone: a limit before it is another after it.
        self.low = None if self.low is None else int(self.low) >> amount
        self.high = None if self.high is None else int(self.high) >> amount

    def _round(self, step: Step) -> None:
        if self._in_integers or self.residual is not None:
            raise WorkloadError("results are rounded that no kernel rounds")
        self.rounded = True

    def _convert(self, step: Step) -> None:
        if self._in_integers and step.dtype == "float32":
            if self.shift or self.low is not None or self.high is not None:
                raise WorkloadError("shifted or limited integers are converted to floats")
            self.dtype = "float32"
            return
        if not self._in_integers and is_integer(step.dtype) and not self.rounded:
            raise WorkloadError(f"floats are cut off to {step.dtype}: round them first")
        self.converted = self.dtype = step.dtype

    def _epilogue(self) -> Epilogue | None:
        dtype = self.dtype
        if self.residual is not None:
            own = Residual(dtype, relu=self.last_relu)
            return Epilogue(dtype, self.scale is not None, bool(self.bias), self.relu, residual=own)
        if not is_integer(dtype):
            if self.low is not None or self.high is not None or self.rounded:
                raise WorkloadError(f"results in {dtype} are limited or rounded")
            plain = dtype == self.sums and not (self.bias or self.scale or self.relu)
            return (
                None
                if plain
                else Epilogue(dtype, self.scale is not None, bool(self.bias), self.relu)
            )
        return self._requantized() if self.rounded else self._integral()

    def _requantized(self) -> Epilogue:
        if self.scale is None or self.dtype not in BYTES:
            raise WorkloadError(f"results are rounded to {self.dtype} without a scale")
        clip = self._within(self.dtype)
        whole = dtype_info(self.dtype).integer_range
        relu = self.relu and clip[0] < self.zero_point
        return Epilogue(
            self.dtype,
            scale=True,
            bias=bool(self.bias),
            relu=relu,
            clip=None if clip == whole else clip,
            zero_point=self.zero_point,
        )

    def _integral(self) -> Epilogue | None:
        if self.dtype == self.sums:
            clip = (
                self._within(self.dtype) if self.low is not None or self.high is not None else None
            )
            if not (self.bias or self.relu or self.shift or clip):
                return None
            return Epilogue(self.dtype, False, bool(self.bias), self.relu, self.shift, clip)
        bias, limited = bool(self.bias), self.low is not None or self.high is not None
        if not limited and not self.relu:
            return Epilogue(self.dtype, False, bias, shift=self.shift, wraps=True)
        return Epilogue(self.dtype, False, bias, self.relu, self.shift, self._within(self.dtype))

    def _within(self, dtype: str) -> tuple[int, int]:
        """The limits as whole numbers of a type, which conversions to it have to respect."""
        least, largest = dtype_info(dtype).integer_range
        low = (
            self.low if self.low is not None else (0 if self.relu and not self.zero_point else None)
        )
        same = dtype == self.sums
        low = least if low is None and same else low
        high = largest if self.high is None and same else self.high
        if low is None or high is None or not least <= low <= high <= largest:
            raise WorkloadError(f"results may be beyond what {dtype} holds: limit them to it")
        if low != int(low) or high != int(high):
            raise WorkloadError(f"results in {dtype} are limited to no whole numbers")
        return int(low), int(high)


def _number(step: Step) -> float:
    if step.term is None or not step.term.is_number:
        raise WorkloadError(f"{step.operation} takes a tensor, where kernels have a number")
    return step.term.number

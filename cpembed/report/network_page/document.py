"""The document of ``cpembed network --json`` as values that reports read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec

from cpembed.errors import InvariantError


class State(StrEnum):
    """Kind of code that computes an operator."""

    EMBEDDED = "embedded"
    """The target's instruction."""
    ALTERNATIVE = "alternative"
    """The instruction of an alternative of the target, or of another unit of its processor."""
    GENERATED = "generated"
    """A generated kernel: the operator is no product."""
    UNMATCHED = "unmatched"
    """A generated kernel, though it is a product: no instruction fits."""


class Conversion(msgspec.Struct, frozen=True):
    """Copy of a tensor to another layout, with its time in microseconds."""

    to: str
    us: float | None = None


class Tensor(msgspec.Struct, frozen=True):
    """Tensor of the network, its layout, and the copies to other layouts."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    conversions: tuple[Conversion, ...] = ()


class HostWork(msgspec.Struct, frozen=True):
    """Step of an operator that the host executes, with its estimated time in microseconds."""

    work: str
    estimated_us: float | None = None


class MethodError(msgspec.Struct, frozen=True):
    """Root mean squares of a method's error against float64, and that of sums in float32."""

    rms: float
    sums_rms: float
    growth: float | None = None


class Operator(msgspec.Struct, frozen=True):
    """Operator with its embedding and times; what a document leaves out is None or empty.

    Parameters
    ----------
    workload, axes
        Computation of a product and its extents; None and empty for other kinds.
    layouts
        Layouts in which the inputs are read, then those of the outputs.
    """

    name: str
    kind: str = ""
    label: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    workload: str | None = None
    macs: int = 0
    embedded_on: str | None = None
    embedding: str | None = None
    family: Any = None
    utilisation: float | None = None
    reason: str | None = None
    fused_with: str | None = None
    not_fused: str | None = None
    predicted_us: float | None = None
    measured_us: float | None = None
    estimated_us: float | None = None
    estimated_cycles: float | None = None
    cycles: float | None = None
    verified: bool | None = None
    verified_with_special_values: bool | None = None
    layouts: tuple[str, ...] = ()
    axes: dict[str, int] = {}
    max_error: float | None = None
    method: str | None = None
    error: MethodError | None = None
    host: tuple[HostWork, ...] = ()

    @property
    def is_rewritten(self) -> bool:
        """True for a convolution that is not computed by its own sums."""
        return self.method not in (None, "implicit")

    @property
    def computation(self) -> str:
        """Kind of the operator, with a method other than its own sums, and how its error grows."""
        kind = self.label or self.kind
        if not self.is_rewritten:
            return kind
        growth = None if self.error is None else self.error.growth
        error = "" if growth is None else f", error x{growth:.2f}"
        return f"{kind} by {self.method}{error}"

    @property
    def is_wrong(self) -> bool:
        """True if results differ from the definition, on ordinary or on special inputs."""
        return False in (self.verified, self.verified_with_special_values)

    def reads_as(self, number: int) -> str | None:
        """Return the layout in which an input is read; None if the document does not say."""
        is_complete = len(self.layouts) == len(self.inputs) + len(self.outputs)
        return self.layouts[number] if is_complete else None

    @property
    def predicted(self) -> float | None:
        """Predicted time in the unit of the network."""
        # Compiled networks have the first, stepwise ones the others.
        times = (self.predicted_us, self.estimated_us, self.estimated_cycles)
        return next((time for time in times if time is not None), None)

    @property
    def measured(self) -> float | None:
        """Measured or simulated time in the unit of the network."""
        # Cycles are those of a simulated target.
        return self.cycles if self.measured_us is None else self.measured_us

    @property
    def amount(self) -> float | None:
        """Measured time, or else the predicted one, in the unit of the network."""
        return self.predicted if self.measured is None else self.measured

    @property
    def ratio(self) -> float | None:
        """Measured time divided by the predicted one."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def mapping(self) -> str:
        """Axes that feed each instruction axis: ``y ← k   z ← c r s``."""
        family: object = self.family
        if isinstance(family, Mapping):
            pairs = cast("Mapping[str, Any]", family)
            return "   ".join(f"{axis} ← {_axes(axes)}" for axis, axes in pairs.items())
        return "" if family is None else str(family)


class Totals(msgspec.Struct, frozen=True):
    """Times, sizes and numbers of products of the network."""

    predicted_us: float | None = None
    measured_us: float | None = None
    cold_us: float | None = None
    total_cycles: float | None = None
    bytes_workspace: int | None = None
    bytes_weights: int | None = None
    embedded: int | None = None
    products: int | None = None
    weight_only: int | None = None
    macs: int | None = None
    host_us: float | None = None


class Assignment(msgspec.Struct, frozen=True):
    """Selection of the layouts: cost, lower bound, and the costs of two simple rules.

    Parameters
    ----------
    cost_us, bound_us
        Sum over all operators and conversions in microseconds, and its lower bound.
    costs
        Origin of the operators' costs: ``estimated`` or ``measured``.
    """

    cost_us: float | None = None
    bound_us: float | None = None
    gap: float | None = None
    proven: bool | None = None
    seconds: float | None = None
    options: int | None = None
    layouts: int | None = None
    channels_last_us: float | None = None
    own_best_us: float | None = None
    costs: str = "estimated"


class Network(msgspec.Struct, frozen=True):
    """Network on a target: operators, tensors, totals; times are in ``unit``.

    Parameters
    ----------
    units
        Names of the targets that the network is meant to use: all of a processor, or the named one.
    floats
        Element type to which the operands of float products are rounded, float32 being no rounding.
    float16_as
        Element type in which the model's float16 is computed; None if it has none.
    """

    network: str
    target: str
    units: tuple[str, ...] = ()
    floats: str | None = None
    float16_as: str | None = None
    threads: int | None = None
    unit: str = "us"
    provenance: str = ""
    operators: tuple[Operator, ...] = ()
    tensors: dict[str, Tensor] = {}
    totals: Totals = Totals()
    assignment: Assignment | None = None
    machine: dict[str, Any] = {}
    special_inputs: tuple[str, ...] = ()
    spreads_nan: tuple[str, ...] = ()

    def state(self, operator: Operator) -> State:
        if operator.embedded_on is not None:
            is_own = operator.embedded_on in (self.units or (self.target,))
            return State.EMBEDDED if is_own else State.ALTERNATIVE
        # Only products have a workload.
        return State.GENERATED if operator.workload is None else State.UNMATCHED

    @property
    def floats_text(self) -> str:
        """Types in which floats are computed; empty if it is float32, as in the model."""
        texts: list[str] = []
        if self.float16_as is not None:
            texts.append(f"float16 is computed in {self.float16_as}")
        if self.floats not in (None, "float32"):
            texts.append(f"factors of products are rounded to {self.floats}, sums are float32")
        return "; ".join(texts)

    def tensor(self, name: str) -> Tensor:
        return self.tensors.get(name, Tensor())

    @property
    def took(self) -> float | None:
        """Time of the network in its unit; None if it did not run."""
        return self.totals.total_cycles if self.unit == "cycles" else self.totals.measured_us

    @property
    def operators_amount(self) -> float:
        """Sum of the operators' times, each measured or else predicted."""
        return sum(operator.amount or 0.0 for operator in self.operators)

    @property
    def conversions_us(self) -> float:
        """Sum of the conversions' times in microseconds."""
        return sum(c.us or 0.0 for tensor in self.tensors.values() for c in tensor.conversions)


def read(document: Mapping[str, Any]) -> Network:
    """Return a document as a value.

    Raises :class:`InvariantError` for a mapping that is no such document.
    """
    try:
        return msgspec.convert(_finite(document), Network, strict=False)
    except msgspec.ValidationError as error:
        raise InvariantError(f"the document of a network: {error}") from error


def _finite(value: Any) -> Any:
    """Return a value as JSON has it, with None in place of infinities and NaN."""
    # JSON has no infinities: a page of a document and of its JSON are the same.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {str(key): _finite(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    return value


def _axes(axes: Any) -> str:
    if isinstance(axes, str):
        return axes
    return " ".join(map(str, axes)) or "·"

"""The document of ``cpembed network --json``, as values that reports read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec

from cpembed.errors import InvariantError


class State(StrEnum):
    """Of an operator: what computes it."""

    EMBEDDED = "embedded"
    """The target's instruction."""
    ALTERNATIVE = "alternative"
    """That of an alternative of the target."""
    GENERATED = "generated"
    """A generated kernel: the operator is no product."""
    UNMATCHED = "unmatched"
    """A generated kernel, though it is a product: no instruction fits."""


class Conversion(msgspec.Struct, frozen=True):
    """A tensor copied to another layout."""

    to: str
    us: float | None = None


class Tensor(msgspec.Struct, frozen=True):
    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    conversions: tuple[Conversion, ...] = ()


class Operator(msgspec.Struct, frozen=True):
    """``workload`` is the product's computation, with its ``axes``, None of other kinds;
    ``layouts`` those in which the inputs are read, then those of the outputs, where given."""

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

    @property
    def is_wrong(self) -> bool:
        """Whether results differ from the definition, on whichever inputs."""
        return False in (self.verified, self.verified_with_special_values)

    def reads_as(self, number: int) -> str | None:
        """The layout in which an input is read; None where that is not given."""
        known = len(self.layouts) == len(self.inputs) + len(self.outputs)
        return self.layouts[number] if known else None

    @property
    def predicted(self) -> float | None:
        """In the unit of the network, as what follows."""
        known = (self.predicted_us, self.estimated_us, self.estimated_cycles)
        return next((value for value in known if value is not None), None)

    @property
    def measured(self) -> float | None:
        """Or simulated."""
        return self.cycles if self.measured_us is None else self.measured_us

    @property
    def amount(self) -> float | None:
        """The measured time, or else the predicted one."""
        return self.predicted if self.measured is None else self.measured

    @property
    def ratio(self) -> float | None:
        """The measured time over the predicted one."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def mapping(self) -> str:
        """The family in words: ``y ← k   z ← c r s``."""
        family: object = self.family
        if isinstance(family, Mapping):
            pairs = cast("Mapping[str, Any]", family)
            return "   ".join(f"{axis} ← {_axes(axes)}" for axis, axes in pairs.items())
        return "" if family is None else str(family)


class Totals(msgspec.Struct, frozen=True):
    predicted_us: float | None = None
    measured_us: float | None = None
    cold_us: float | None = None
    total_cycles: float | None = None
    bytes_workspace: int | None = None
    bytes_weights: int | None = None
    embedded: int | None = None
    products: int | None = None
    macs: int | None = None


class Assignment(msgspec.Struct, frozen=True):
    """How the layouts were chosen: the ``cost_us`` of all operators and conversions, a lower bound,
    and the costs of the two simple rules; ``costs`` says where those of the operators are from."""

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
    network: str
    target: str
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
            is_own = operator.embedded_on == self.target
            return State.EMBEDDED if is_own else State.ALTERNATIVE
        return State.GENERATED if operator.workload is None else State.UNMATCHED

    def tensor(self, name: str) -> Tensor:
        return self.tensors.get(name, Tensor())

    @property
    def took(self) -> float | None:
        """The whole network, in its unit."""
        return self.totals.total_cycles if self.unit == "cycles" else self.totals.measured_us

    @property
    def operators_amount(self) -> float:
        """Of all operators, measured or else predicted."""
        return sum(operator.amount or 0.0 for operator in self.operators)

    @property
    def conversions_us(self) -> float:
        """Of all tensors."""
        return sum(c.us or 0.0 for tensor in self.tensors.values() for c in tensor.conversions)


def read(document: Mapping[str, Any]) -> Network:
    """The document as a value; what it leaves out is not known.

    Raises :class:`InvariantError` for what is no such document.
    """
    try:
        return msgspec.convert(_finite(document), Network, strict=False)
    except msgspec.ValidationError as error:
        raise InvariantError(f"the document of a network: {error}") from error


def _finite(value: Any) -> Any:
    """Numbers that are none as not known, mappings and lists as JSON has them."""
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

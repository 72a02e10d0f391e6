"""What a baseline is: a layer goes in, something that runs it comes out, or a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from cpembed.codegen.epilogue import Epilogue
from cpembed.ir.computation import Computation
from cpembed.workloads.suites import DEFAULT_LAYOUT, Layer

Arrays = Mapping[str, NDArray[Any]]
"""Inputs by operand, in the workload's layouts, and the vectors of what is stored, where it has
such."""


@dataclass(frozen=True)
class Subject:
    """A workload with the operator and the sizes that it was made from, defaults included: a
    library is called by these, not by a loop nest. ``stored`` is what both sides store of the sums;
    None leaves that to the library's fastest form."""

    workload: Computation
    operator: str
    settings: Mapping[str, object]
    stored: Epilogue | None = None

    @classmethod
    def of(
        cls,
        layer: Layer,
        workload: Computation,
        layout: str = DEFAULT_LAYOUT,
        stored: Epilogue | None = None,
    ) -> Subject:
        """``workload`` is the layer's, in ``layout``."""
        operator = layer.operator
        given = {**layer.parameters, **layer.layout_settings(layout)}
        return cls(workload, operator.name, operator.settings(given), stored)


@dataclass(frozen=True)
class NotCovered:
    """The baseline cannot run the workload; one sentence without a full stop."""

    reason: str


@dataclass(frozen=True)
class Primitives:
    """What one call did by a library's own account, in microseconds, averaged over calls.

    ``us`` is the computation. ``reorder_us`` moves activations into another layout, ``weights_us``
    weights, which could have been done ahead; neither is part of ``us``. ``names`` are the
    implementations that the library chose, in the order of execution.
    """

    us: float
    reorder_us: float
    weights_us: float
    names: tuple[str, ...]


class Contender(Protocol):
    """One form in which a baseline runs a workload, its operands packed and in place."""

    @property
    def form(self) -> str:
        """How it is called and what it returns: ``qconv2d_pointwise, f32 result``."""
        ...

    def run(self) -> Any:
        """One call."""
        ...

    def output(self) -> NDArray[Any]:
        """The result of a call, in the shape of the workload's output. Its type may be another:
        sums as float32, or saturated to 8 bits, or rounded to bfloat16."""
        ...

    def primitives(self, calls: int) -> Primitives | None:
        """The library's own times over so many calls; None where it keeps none."""
        ...


class Baseline(Protocol):
    """A library to compare with, loaded and ready."""

    @property
    def name(self) -> str: ...

    @property
    def pool(self) -> str:
        """Whose threads it runs on: kinds of work of one pool need no pause between them."""
        ...

    def identity(self) -> dict[str, str | None]:
        """Versions and settings that its times depend on."""
        ...

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        """Every form worth trying: the fastest one is compared."""
        ...

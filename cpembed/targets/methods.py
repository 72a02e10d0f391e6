"""What a target brings to run a convolution by a method: the parts around the product.

The product itself is solved, chosen and built as any workload of the target is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.recorded import RecordedCalls
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Timing
from cpembed.transform.methods.convolution import M, Rewritten, V
from cpembed.transform.program import DerivedProgram

Array = NDArray[Any]


@dataclass(frozen=True)
class MethodPlan:
    """A method with ``product`` executed ``count`` times, each over some of its tiles.

    ``parts_us`` is what the target's model expects of all other parts of one call, in microseconds;
    weights are transformed ahead.
    """

    method: Rewritten
    product: Computation
    count: int
    parts_us: float


class MethodArtifact(Protocol):
    """A method that can be called; ``backend`` executes its product."""

    @property
    def backend(self) -> str: ...

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """The output of a workload's inputs, all in their own layouts."""
        ...

    def time(self, inputs: Mapping[str, Array]) -> Timing:
        """``latency_us`` is the product alone; packing and unpacking are the other parts."""
        ...

    def bound_whole(self, inputs: Mapping[str, Array]) -> Any:
        """One call to be timed, from the image's own layout to the output's own."""
        ...


class Methods(ABC):
    """The parts around products on one target."""

    @abstractmethod
    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        """Ways to run a method that are worth estimating.

        Raises :class:`~cpembed.errors.LoweringError` for a method that has no generated parts.
        """

    def takes(self, program: DerivedProgram) -> bool:
        """Whether a product reads V and writes M as the parts around it leave and take them: where
        they lie, in the order of their indices."""
        return all(program.operand(name).is_identity for name in (V, M))

    def recorded(self, plan: MethodPlan, product: CompiledKernel) -> RecordedCalls | None:
        """The calls of a plan on a kernel of its product that was made for a recorder, for a
        library; None for a target whose programs no C compiler can link."""
        return None

    @abstractmethod
    def build(self, plan: MethodPlan, product: Any) -> MethodArtifact:
        """A plan on the artifact of its product.

        Raises :class:`~cpembed.errors.LoweringError` where the product's kernel does not take its
        operands as the other parts leave them.
        """


@runtime_checkable
class RunsMethods(Protocol):
    """Runs convolutions by im2col or Winograd."""

    @property
    def methods(self) -> Methods | None:
        """Parts around the product; None if this machine cannot run them."""
        ...


def methods_of(target: Any) -> Methods | None:
    """Return the parts around products on a target; None if it runs no methods."""
    return target.methods if isinstance(target, RunsMethods) else None

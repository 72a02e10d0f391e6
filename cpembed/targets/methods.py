"""Methods of convolutions (im2col, Winograd) on a target: the parts around the product.

The product itself is solved, chosen and built like any workload of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.method_calls import MethodTensors
from cpembed.codegen.recorded import RecordedCalls
from cpembed.errors import InvariantError, LoweringError
from cpembed.ir.computation import Computation
from cpembed.runtime.measurement.runner import Timing
from cpembed.transform.methods.convolution import M, Rewritten, V
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import DerivedProgram, PackedOperand

Array = NDArray[Any]


@dataclass(frozen=True)
class MethodPlan:
    """Method with its product, executed ``count`` times, each over some of its tiles.

    ``parts_us`` is the target's estimate of all other parts of a call in microseconds; weights are
    transformed ahead.
    """

    method: Rewritten
    product: Computation
    count: int
    parts_us: float


class MethodArtifact(Protocol):
    """Executable method; ``backend`` names the back end of its product."""

    @property
    def backend(self) -> str: ...

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Return the output; all arrays are in the workload's layouts."""
        ...

    def time(self, inputs: Mapping[str, Array]) -> Timing:
        """Time the method: ``latency_us`` is the product; all else is packing and unpacking."""
        ...

    def bound_whole(self, inputs: Mapping[str, Array]) -> Any:
        """Return one call to be timed, from the image's original layout to the output's."""
        ...


class Methods(ABC):
    """Parts around products on one target."""

    @abstractmethod
    def plans(self, method: Rewritten) -> tuple[MethodPlan, ...]:
        """Return the plans of a method that are worth estimating.

        Raises :class:`~cpembed.errors.LoweringError` for a method without generated parts.
        """

    def takes(self, program: DerivedProgram) -> bool:
        """True if a product reads V and writes M in place, in the order of their indices."""
        # The other parts write V and read M in this order; packing them would cost a copy each.
        return all(program.operand(name).is_identity for name in (V, M))

    def conversion_us(self, operand: PackedOperand) -> float:
        """Return the estimated time of bringing an operand into a layout, in microseconds.

        Raises :class:`~cpembed.errors.LoweringError` if the target has no such parts.
        """
        raise LoweringError("this target has no conversions ahead of a product")

    def in_place_plans(self, method: Winograd, stored: str) -> tuple[MethodPlan, ...]:
        """Return plans that read the image and write the output where they lie, as networks do.

        Their estimates have no conversions, but weights that lie in no cache. There are none if the
        target has no such parts, or does not multiply what is transformed.

        Parameters
        ----------
        method : Winograd
        stored : str
            Element type of the output in memory.
        """
        return ()

    def recorded_in_place(
        self,
        plan: MethodPlan,
        product: CompiledKernel,
        tensors: MethodTensors,
        constants: Mapping[str, Array],
    ) -> RecordedCalls:
        """Return the calls of a plan of :meth:`in_place_plans`.

        Parameters
        ----------
        plan : MethodPlan
        product : CompiledKernel
            Kernel of the product, made for a recorder.
        tensors : MethodTensors
            Image and output in memory, with the epilogue.
        constants : mapping of str to array
            Weights by the operand's name, and the epilogue's vectors.
        """
        raise InvariantError("this target has no plans in place")

    def recorded(self, plan: MethodPlan, product: CompiledKernel) -> RecordedCalls | None:
        """Return the calls of a plan for a library; None if no C compiler can link its programs.

        ``product`` is a kernel that was made for a recorder.
        """
        return None

    @abstractmethod
    def build(self, plan: MethodPlan, product: Any) -> MethodArtifact:
        """Build a plan on the artifact of its product.

        Raises :class:`~cpembed.errors.LoweringError` if the product's kernel does not take its
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

"""The kernel of a recognised function: TensorIR functions of the best embedding that has any."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cpembed.errors import LoweringError, WorkloadError
from cpembed.kernel.tensorir import FunctionCalls
from cpembed.selection.ranking import RankedCandidate
from cpembed.tvm.choice import Machine, Program, Refused, programs
from cpembed.tvm.fused import Fused

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A program of a fused function; ``arguments`` are the numbers of the function's parameters
    that its inputs are, by name, but for those that are part of it."""

    fused: Fused
    program: Program
    arguments: Mapping[str, int]

    @property
    def ranked(self) -> RankedCandidate:
        return self.program.ranked

    @property
    def calls(self) -> FunctionCalls:
        return self.program.artifact

    @property
    def output(self) -> str:
        """The name of the result among the inputs."""
        return self.fused.computation.output.name

    @property
    def embedding(self) -> str:
        return self.ranked.candidate.embedding.identifier()


def kernel_of(
    machine: Machine, fused: Fused, constants: Mapping[int, Array] | None = None
) -> Kernel | Refused:
    """The best candidate's; ``constants`` are parameters whose contents are known, by number."""
    constants = constants or {}
    try:
        request = _Request.of(machine, fused, constants)
    except WorkloadError as error:
        return Refused(str(error))
    found = machine.choose(fused.computation, fused.epilogue, request.make)
    return found if isinstance(found, Refused) else Kernel(fused, found, request.arguments)


def kernels_of(machine: Machine, fused: Fused, top: int) -> list[Kernel]:
    """Of the best candidates, in the order of :func:`kernel_of`'s choice."""
    try:
        request = _Request.of(machine, fused, {})
    except WorkloadError:
        return []
    solved = machine.solve(fused.computation)
    if isinstance(solved, Refused):
        return []
    found: list[Kernel] = []
    for item in programs(machine.target, solved, fused.epilogue, request.make):
        if isinstance(item, Program):
            found.append(Kernel(fused, item, request.arguments))
        if len(found) == top:
            break
    return found


@dataclass(frozen=True)
class _Request:
    machine: Machine
    arguments: Mapping[str, int]
    contents: Mapping[str, Array]

    @classmethod
    def of(cls, machine: Machine, fused: Fused, constants: Mapping[int, Array]) -> _Request:
        """Raises :class:`WorkloadError` for vectors that are no vectors."""
        taken: dict[str, int | Array] = {**fused.operands, **fused.vectors(constants)}
        arguments = {
            name: value
            for name, value in taken.items()
            if isinstance(value, int) and value not in constants
        }
        contents = {
            name: constants[value] if isinstance(value, int) else value
            for name, value in taken.items()
            if name not in arguments
        }
        return cls(machine, arguments, contents)

    def make(self, lowered: Any, schedule: Any) -> FunctionCalls:
        """Raises :class:`~cpembed.errors.LoweringError` where the target has no such functions."""
        calls = self.machine.target.tensorir(lowered, schedule, self.contents)
        if calls is None:
            raise LoweringError(f"programs of {self.machine.spec.name} are no TensorIR functions")
        return calls

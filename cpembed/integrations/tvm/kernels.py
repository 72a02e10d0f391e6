"""The kernel of a recognised function: TensorIR functions of the best embedding that has any."""
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cpembed.codegen.recorded import FunctionCalls
from cpembed.cost.ranking import RankedCandidate
from cpembed.errors import LoweringError, WorkloadError
from cpembed.integrations.tvm.choice import Machine, Make, Program, Refused, scheduled
from cpembed.integrations.tvm.fused import Fused
from cpembed.targets.capabilities import tensorir

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A program of a fused function; ``arguments`` are the numbers of the function's parameters
    that its inputs are, by name, but for those that are part of it, and ``filled`` the values of
    inputs whose elements are all the same."""

    fused: Fused
    program: Program
    arguments: Mapping[str, int]
    filled: Mapping[str, float]

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


def kernel_of(machine: Machine, fused: Fused, constants: Mapping[int, Array]) -> Kernel | Refused:
    """The best candidate's; ``constants`` are parameters whose contents are known, by number: they
    are part of it, and so are numbers."""
    try:
        inputs = _Inputs.of(fused, constants)
    except WorkloadError as error:
        return Refused(str(error))
    return inputs.kernel(machine, fused)


def closed_kernel_of(machine: Machine, fused: Fused) -> Kernel | Refused:
    """The best candidate's, of parameters alone: nothing is part of it, numbers are ``filled``."""
    try:
        inputs = _Inputs.of(fused, {}).filling()
    except WorkloadError as error:
        return Refused(str(error))
    return inputs.kernel(machine, fused)


def closed_kernels_of(machine: Machine, fused: Fused) -> Iterator[Kernel]:
    """As :func:`closed_kernel_of`, of each candidate with each schedule, the best first."""
    inputs = _Inputs.of(fused, {}).filling()
    solved = machine.solve(fused.computation)
    if isinstance(solved, Refused):
        return
    for program in scheduled(machine.target, solved, fused.epilogue, inputs.making(machine)):
        yield Kernel(fused, program, inputs.arguments, inputs.filled)


@dataclass(frozen=True)
class _Inputs:
    arguments: Mapping[str, int]
    contents: Mapping[str, Array]
    filled: Mapping[str, float]

    @classmethod
    def of(cls, fused: Fused, constants: Mapping[int, Array]) -> _Inputs:
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
        return cls(arguments, contents, {})

    def filling(self) -> _Inputs:
        """With contents that are filled."""
        filled = {name: values.reshape(-1)[0].item() for name, values in self.contents.items()}
        return _Inputs(self.arguments, {}, filled)

    def making(self, machine: Machine) -> Make:
        def make(lowered: Any, schedule: Any) -> FunctionCalls:
            calls = tensorir(machine.target, lowered, schedule, self.contents)
            if calls is None:
                raise LoweringError(f"programs of {machine.spec.name} are no TensorIR functions")
            return calls

        return make

    def kernel(self, machine: Machine, fused: Fused) -> Kernel | Refused:
        found = machine.choose(fused.computation, fused.epilogue, self.making(machine))
        if isinstance(found, Refused):
            return found
        return Kernel(fused, found, self.arguments, self.filled)

"""Epilogues as a command requests them, before a target gives them a form of its own."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.codegen.epilogue import RESIDUAL_INPUT, Chain, Epilogue, Residual, SecondResult
from cpembed.errors import WorkloadError
from cpembed.ir.dtypes import is_integer
from cpembed.ir.scalars import Input, Scalar, input_numbers


@dataclass(frozen=True)
class EpilogueRequest:
    """Epilogue that a command requests; None and False leave the choice to the target."""

    output: str | None = None
    shift: int | None = None
    bias: bool = False
    scale: bool = False
    relu: bool = False
    chain: Scalar | None = None
    """Expression of a :class:`Chain` without vectors; input 1 is a residual of the output type."""
    second: SecondResult | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps between the sums and the conversion."""
        steps = {
            "relu": self.relu,
            "a bias": self.bias,
            "a scale": self.scale,
            "a chain": self.chain is not None,
            "a second output": self.second is not None,
        }
        return tuple(name for name, enabled in steps.items() if enabled)

    @property
    def _chain(self) -> Chain | None:
        # A second output has the inputs of a chain, so without one the first is the identity.
        if self.chain is None and self.second is not None and RESIDUAL_INPUT in self._inputs:
            return Chain(Input(0))
        return None if self.chain is None else Chain(self.chain)

    @property
    def _inputs(self) -> set[int]:
        """Numbers of the inputs that the expressions read."""
        expressions = [self.chain, None if self.second is None else self.second.expression]
        return {number for e in expressions if e is not None for number in input_numbers(e)}

    def require_one_output(self, target: str) -> None:
        """Raise :class:`WorkloadError` for a second output."""
        if self.second is not None:
            raise WorkloadError(f"{target} stores one output: leave the second one out")

    def epilogue(self, target: str, sums: str) -> Epilogue | None:
        """Return the epilogue, or None if the sums are stored as they are.

        Raises
        ------
        WorkloadError
            The steps exclude each other.
        """
        if self.shift is not None and not is_integer(sums):
            raise WorkloadError(f"a shift is of integers, and {target} sums {sums}: leave it out")
        if self.output is None and self.shift is None and not self.steps:
            return None
        chain = self._chain
        # A shift is how fixed-point inference returns to bytes; chains are computed in floats.
        default = sums if self.shift is None else "int8"
        default = "float32" if chain is not None and is_integer(default) else default
        output = self.output or default
        return Epilogue(
            output,
            self.scale,
            self.bias,
            relu=self.relu,
            shift=self.shift or 0,
            residual=Residual(output) if RESIDUAL_INPUT in self._inputs else None,
            chain=chain,
            second=self.second,
        )

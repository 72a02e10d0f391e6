"""What the pass did: which operators it replaced, and why it left the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorReport:
    """An operator of a module.

    ``operator`` is its name in relax, or that of its TensorIR function; ``workload`` the
    computation that it was recognised as, None where it was not. ``reason`` says why it is left
    to TVM, and is None where it is replaced: then ``embedding`` is the identifier, ``utilisation``
    the share of useful products and ``output`` the form in which results are stored: ``int32``,
    ``int8``, or ``requantized``, with what followed in it.
    """

    function: str
    variable: str
    operator: str
    workload: str | None = None
    reason: str | None = None
    embedding: str | None = None
    utilisation: float | None = None
    output: str | None = None

    @property
    def replaced(self) -> bool:
        return self.reason is None

    def __str__(self) -> str:
        name = f"{self.function}/{self.variable} {self.operator}"
        if not self.replaced:
            return f"{name}: stays with TVM: {self.reason}"
        return f"{name}: {self.output}, embedding {self.embedding}, {self.utilisation:.1%} utilised"


@dataclass(frozen=True)
class OffloadReport:
    """All operators that could be products of tensors, in the order of the module."""

    target: str
    operators: tuple[OperatorReport, ...]

    @property
    def replaced(self) -> tuple[OperatorReport, ...]:
        return tuple(operator for operator in self.operators if operator.replaced)

    @property
    def kept(self) -> tuple[OperatorReport, ...]:
        return tuple(operator for operator in self.operators if not operator.replaced)

    def __str__(self) -> str:
        head = f"{self.target}: {len(self.replaced)} of {len(self.operators)} operators replaced"
        return "\n".join([head, *map(str, self.operators)])

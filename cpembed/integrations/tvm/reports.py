"""Reports of the passes: which operators became programs, who scheduled a function, and why."""

from __future__ import annotations

from dataclasses import dataclass

CPEMBED = "cpembed"
NOBODY = "TVM's loops as they are"


@dataclass(frozen=True)
class OperatorReport:
    """Operator of a module that is a product of tensors.

    Parameters
    ----------
    function, variable
        Names of the relax function and of the variable that takes the result.
    operator
        Name of the operator in relax, or of its TensorIR function.
    workload
        Computation that the operator was recognised as; None if it was not.
    reason
        Reason why the operator is left to TVM; None if it is replaced.
    embedding
        Identifier of the embedding.
    utilisation
        Useful share of the instruction's multiply-accumulates, 0 to 1.
    output
        Form of the results: ``int32``, ``int8``, or ``requantized`` with the operations that
        follow.
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
    """Operators that are products of tensors, in the order of the module."""

    target: str
    operators: tuple[OperatorReport, ...]

    @property
    def replaced(self) -> tuple[OperatorReport, ...]:
        return tuple(operator for operator in self.operators if operator.replaced)

    @property
    def left_to_tvm(self) -> tuple[OperatorReport, ...]:
        return tuple(operator for operator in self.operators if not operator.replaced)

    def __str__(self) -> str:
        head = f"{self.target}: {len(self.replaced)} of {len(self.operators)} operators replaced"
        return "\n".join([head, *map(str, self.operators)])


@dataclass(frozen=True)
class ScheduleEntry:
    """Function of a module and who scheduled it.

    Parameters
    ----------
    function
        Name of the function.
    operators
        Names of the operators that are fused in it.
    scheduled_by
        :data:`CPEMBED`, the name of a rule of TVM, or :data:`NOBODY`.
    embedding, utilisation, stored
        Identifier, useful share of the instruction and stored form of a kernel of ours.
    reason
        Reason why the function is no kernel of ours, or why an operator that follows is not part of
        the kernel; None for functions that sum no products.
    """

    function: str
    operators: tuple[str, ...]
    scheduled_by: str
    embedding: str | None = None
    utilisation: float | None = None
    stored: str | None = None
    reason: str | None = None

    @property
    def is_ours(self) -> bool:
        return self.scheduled_by == CPEMBED

    def __str__(self) -> str:
        fused = f" ({' + '.join(self.operators)})" if self.operators else ""
        text = f"{self.function}{fused}: {self.scheduled_by}"
        if self.is_ours:
            text += f", embedding {self.embedding}, {self.utilisation:.1%} utilised"
            text += f", stores {self.stored}"
        return text if self.reason is None else f"{text}; {self.reason}"


@dataclass(frozen=True)
class ScheduleReport:
    """Functions of a module, in its order."""

    target: str
    entries: tuple[ScheduleEntry, ...]

    @property
    def kernels(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry in self.entries if entry.is_ours)

    @property
    def rest(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.is_ours)

    def __str__(self) -> str:
        head = (
            f"{self.target}: {len(self.kernels)} of {len(self.entries)} functions are its kernels"
        )
        return "\n".join([head, *map(str, self.entries)])

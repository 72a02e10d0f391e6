"""Who scheduled what of a module: kernels of embeddings, a rule of TVM, or nobody, and why."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "cpembed"
NOBODY = "TVM's loops as they are"


@dataclass(frozen=True)
class ScheduleEntry:
    """A function of a module, ``operators`` the names of what is fused in it.

    ``scheduled_by`` is :data:`OURS`, a rule of TVM by its name, or :data:`NOBODY`. Of ours,
    ``embedding`` is the identifier, ``utilisation`` the share of useful products, ``stored`` what
    is stored of the sums. ``reason`` says why it is none of ours, or why what follows is not part
    of it; None for functions that sum no products.
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
        return self.scheduled_by == OURS

    def __str__(self) -> str:
        name = (
            f"{self.function} ({' + '.join(self.operators)})" if self.operators else self.function
        )
        text = f"{name}: {self.scheduled_by}"
        if self.is_ours:
            text += f", embedding {self.embedding}, {self.utilisation:.1%} utilised"
            text += f", stores {self.stored}"
        return text if self.reason is None else f"{text}; {self.reason}"


@dataclass(frozen=True)
class ScheduleReport:
    """All functions of a module, in its order."""

    target: str
    entries: tuple[ScheduleEntry, ...]

    @property
    def ours(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry in self.entries if entry.is_ours)

    @property
    def others(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.is_ours)

    def __str__(self) -> str:
        head = f"{self.target}: {len(self.ours)} of {len(self.entries)} functions are its kernels"
        return "\n".join([head, *map(str, self.entries)])

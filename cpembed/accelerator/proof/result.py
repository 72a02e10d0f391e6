"""Result of a proof: its obligations and how each was decided, or the first that fails."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Obligation:
    """An obligation that holds.

    Attributes
    ----------
    name : str
        Which of the obligations in :mod:`cpembed.accelerator.proof`.
    mechanism : str
        Mechanism that decided it: ``isl``, ``enumeration``, ``trace`` or ``machine``.
    seconds : float
        Time that it took, in seconds; obligations decided in one pass share it.
    """

    name: str
    mechanism: str
    seconds: float


@dataclass(frozen=True)
class ProgramProof:
    """Outcome of the translation validation of one program.

    Attributes
    ----------
    program : str
        Name of the program.
    obligations : tuple of Obligation
        What was shown; all of them if the proof holds.
    refusal : str
        What does not hold, in one line; empty if the program is proven.
    assumptions : tuple of str
        What the proof rests on beyond the description of the machine.
    spoiled_margins : tuple of str
        Outputs whose margins may hold something else than their fill in the end.
    """

    program: str
    obligations: tuple[Obligation, ...]
    refusal: str = ""
    assumptions: tuple[str, ...] = ()
    spoiled_margins: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if the program computes its specification."""
        return not self.refusal

    @property
    def mechanism(self) -> str:
        """Mechanism that followed the values through the memories, ``isl`` or ``enumeration``."""
        return next((o.mechanism for o in self.obligations if o.name == "dataflow"), "")


class ObligationError(Exception):
    """An obligation that does not hold; the message is one line."""


class UndecidedError(Exception):
    """A mechanism that cannot decide a program, because of what the message names."""

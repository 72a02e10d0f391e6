"""How a figure came about: a value that every time carries, printed and stored."""

from __future__ import annotations

from enum import StrEnum


class Provenance(StrEnum):
    """Of a time: who took it."""

    MEASURED = "measured"
    """This machine ran it."""
    SIMULATED = "simulated"
    """A cycle-level model ran it."""
    EMULATED = "emulated"
    """Something else executed its instructions: the numbers are right, there is no time."""
    ESTIMATED = "estimated"
    """A formula."""

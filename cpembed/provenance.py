"""The origin of a time, which is printed and stored with it."""

from __future__ import annotations

from enum import StrEnum


class Provenance(StrEnum):
    """The origin of a time."""

    MEASURED = "measured"
    """Measured on this machine."""
    SIMULATED = "simulated"
    """Counted by a cycle-level model."""
    EMULATED = "emulated"
    """The instructions were executed by something else: the numbers are right, there is no time."""
    ESTIMATED = "estimated"
    """Computed by a formula."""

"""Order of executions on a machine that is synchronized by channels, decided on the trace.

An execution happens before another if it precedes it on one unit, if it sent the signal that the
other took, or by a chain of these. Each unit's executions are numbered; the *clock* of an execution
is, for each unit, the number of executions of that unit that happen before its end. The order is
Lamport's, and the clocks are those of Mattern and of Fidge.

Signals of a channel are taken in the order in which they were sent. An execution that takes a
signal stands behind the one that sent it in the text, so the order of the text is one of the
orders that the machine may execute. If all conflicting accesses are ordered, every other one yields
the same values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.accelerator.proof.result import ObligationError
from cpembed.hw.isa import InstructionSet

Integers = NDArray[np.int64]


class Clocks:
    """The clock of each unit while the text is read."""

    def __init__(self, machine: InstructionSet) -> None:
        self._channels = {channel.name: channel for channel in machine.channels}
        self._numbers = {unit: number for number, unit in enumerate(machine.units)}
        self._clocks = np.zeros((len(machine.units), len(machine.units)), np.int64)
        self._signals: dict[str, deque[Integers]] = {c: deque() for c in self._channels}

    def begin(self, unit: str, waits: Sequence[str], place: str) -> tuple[int, Integers]:
        """Begin an execution.

        Parameters
        ----------
        unit : str
            Unit that executes it.
        waits : sequence of str
            Channels of which it takes a signal each.
        place : str
            Description of the execution, for the message.

        Returns
        -------
        tuple of (int, ndarray)
            The unit's number, and the clock of the execution; its own number is the unit's entry.

        Raises
        ------
        ObligationError
            If it waits for a signal that no earlier execution sends.
        """
        number = self._numbers[unit]
        clock = self._clocks[number]
        for name in waits:
            channel = self._channel(name, place)
            if channel.receiver != unit:
                raise ObligationError(f"{place}: unit {unit} cannot wait on channel {name}")
            if not self._signals[name]:
                raise ObligationError(
                    f"{place} waits on {name}, on which nothing before it signals"
                )
            np.maximum(clock, self._signals[name].popleft(), out=clock)
        clock[number] += 1
        return number, clock.copy()

    def end(self, unit: str, clock: Integers, signals: Sequence[str], place: str) -> None:
        """End an execution, which sends its signals."""
        for name in signals:
            channel = self._channel(name, place)
            if channel.sender != unit:
                raise ObligationError(f"{place}: unit {unit} cannot signal on channel {name}")
            if len(self._signals[name]) >= channel.depth:
                raise ObligationError(
                    f"{place} signals on {name}, which holds {channel.depth} signals: "
                    "its receiver has to take one before"
                )
            self._signals[name].append(clock)

    def _channel(self, name: str, place: str) -> Any:
        if name not in self._channels:
            raise ObligationError(f"{place}: {name} is no channel of the machine")
        return self._channels[name]


class Accesses:
    """The last accesses of each place of a memory, by unit."""

    def __init__(self, places: int, units: int) -> None:
        # Column u is the number of the last read (write) by unit u; 0 if there was none.
        self._reads = np.zeros((places, units), np.int32)
        self._writes = np.zeros((places, units), np.int32)

    def read(self, places: Integers, unit: int, clock: Integers) -> int | None:
        """Record a read; return a place whose last write does not happen before it."""
        conflict = _unordered(self._writes, places, unit, clock)
        self._reads[places, unit] = clock[unit]
        return conflict

    def write(self, places: Integers, unit: int, clock: Integers) -> int | None:
        """Record a write; return a place with an access that does not happen before it."""
        conflict = _unordered(self._writes, places, unit, clock)
        if conflict is None:
            conflict = _unordered(self._reads, places, unit, clock)
        self._writes[places, unit] = clock[unit]
        return conflict


def _unordered(
    accesses: NDArray[np.int32], places: Integers, unit: int, clock: Integers
) -> int | None:
    late = accesses[places] > clock
    # A unit executes in order: only others can be late.
    late[..., unit] = False
    if not late.any():
        return None
    return int(places.reshape(-1)[int(np.flatnonzero(late.any(axis=-1).reshape(-1))[0])])

"""What a run did, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Direction = Literal["get", "put"]


@dataclass(frozen=True)
class Moved:
    """Transfers of one operand in one direction, of all processing elements.

    ``transactions``: of main memory, those that each block touches at its real address (swATOP,
    equation 1).
    """

    transfers: int = 0
    bytes: int = 0
    transactions: int = 0


@dataclass(frozen=True)
class Counters:
    """Counts of one run, over all processing elements."""

    moved: Mapping[tuple[int, Direction], Moved]
    """By the operand's number; "get": from main memory."""
    gemms: Mapping[tuple[int, int, int, int], int]
    """Calls of ``gemm`` by m, n, k and variant; one for the whole mesh."""
    instructions: Mapping[tuple[str, int, int, int], int]
    """``touch_call`` by its arguments; one for each processing element."""
    zeroed_bytes: int
    row_vectors: int
    """Sent along rows, those of ``gemm`` included; a broadcast is one."""
    column_vectors: int
    barriers: int
    peaks: tuple[int, ...]
    """By memory: the end of the bytes that were used in any processing element."""

    @property
    def bytes(self) -> int:
        return sum(moved.bytes for moved in self.moved.values())

    @property
    def transactions(self) -> int:
        return sum(moved.transactions for moved in self.moved.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "moved": [
                {"operand": operand, "direction": direction, **vars(moved)}
                for (operand, direction), moved in self.moved.items()
            ],
            "gemms": [[*sizes, calls] for sizes, calls in self.gemms.items()],
            "instructions": [[*call, calls] for call, calls in self.instructions.items()],
            "zeroed_bytes": self.zeroed_bytes,
            "row_vectors": self.row_vectors,
            "column_vectors": self.column_vectors,
            "barriers": self.barriers,
            "peaks": list(self.peaks),
        }


def decoded(text: str) -> Counters:
    """Of the runtime's lines (``native/counters.h``)."""
    moved: dict[tuple[int, Direction], Moved] = {}
    gemms: dict[tuple[int, int, int, int], int] = {}
    instructions: dict[tuple[str, int, int, int], int] = {}
    others: dict[str, int] = {}
    peaks: list[int] = []
    for line in text.splitlines():
        match line.split():
            case ["get" | "put" as direction, operand, *counts]:
                moved[int(operand), direction] = Moved(*map(int, counts))
            case ["gemm", m, n, k, variant, calls]:
                gemms[int(m), int(n), int(k), int(variant)] = int(calls)
            case ["instruction", name, m, n, k, calls]:
                instructions[name, int(m), int(n), int(k)] = int(calls)
            case ["peak", end]:
                peaks.append(int(end))
            case [name, count]:
                others[name] = int(count)
            case _:
                raise ValueError(line)
    return Counters(moved, gemms, instructions, **others, peaks=tuple(peaks))

"""Instructions that compute a statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Digit:
    """``(axis // stride) % count`` of an axis of a statement."""

    axis: str
    count: int
    stride: int = 1


@dataclass(frozen=True)
class Match:
    """An instruction that computes a statement.

    Attributes
    ----------
    axes : mapping of str to tuple of Digit
        Digits of the statement's axes that each axis of the instruction walks, outermost first.
    operands : mapping of str to str
        Tensor of the specification for each operand of the instruction.
    """

    instruction: str
    statement: int
    axes: Mapping[str, tuple[Digit, ...]]
    operands: Mapping[str, str]

"""Types of PTX registers and instructions, as types of C++."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cpembed.errors import LoweringError

_NAME = re.compile(r"(pred|[busf](?:8|16|32|64)|f16x2|bf16x2|bf16|tf32)")

_C_TYPES = {
    "pred": "bool", "s8": "int8_t", "s16": "int16_t", "s32": "int32_t", "s64": "int64_t",
    "f32": "float", "f64": "double",
}  # fmt: skip

_WIDTHS = {"pred": 1, "f16x2": 32, "bf16x2": 32, "bf16": 16, "tf32": 32}


def bits_of(kind: str) -> int:
    """Return the width in bits of a PTX type.

    Raises
    ------
    LoweringError
        If PTX has no such type, or registers do not.
    """
    if not _NAME.fullmatch(kind):
        raise LoweringError(f".{kind} is not the type of a register")
    return _WIDTHS.get(kind) or int(kind[1:])


def c_type(kind: str) -> str:
    """Return the C++ type that holds a value of a PTX type."""
    return _C_TYPES.get(kind) or f"uint{bits_of(kind)}_t"


@dataclass(frozen=True)
class Register:
    """A register of a body: a C++ variable.

    Parameters
    ----------
    variable : str
        Name of the variable, or the constant that an operand ``"n"`` has.
    type : str
    written : bool
        True if instructions may write it.
    constant : bool
        True for an operand ``"n"``, which fits every integer type.
    """

    variable: str
    type: str
    written: bool = True
    constant: bool = False

    @property
    def bits(self) -> int:
        return bits_of(self.type)


CONSTRAINTS = {"r": "b32", "l": "b64", "h": "b16", "f": "f32", "d": "f64"}
"""PTX type of a register by the letter of an operand's constraint."""


def cast(text: str, stored: str, read_as: str) -> str:
    """Return an expression of a register as a value of another type of equal width.

    Parameters
    ----------
    text : str
        Expression of the register.
    stored, read_as : str
        PTX types of the register and of the value.
    """
    source, target = c_type(stored), c_type(read_as)
    if source == target:
        return text
    if "f" in (stored[0], read_as[0]) or "double" in (source, target):
        return f"executor::bits<{target}>({text})"
    return f"static_cast<{target}>({text})"

"""Operator families: a name, parameters, and the function that makes a computation of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from cpembed.errors import WorkloadError
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import resolve_dtypes

Dtypes = str | Sequence[str] | None
"""Element types: one for all inputs, one per input, or those and the output's; None is int8."""
PerAxis = int | Sequence[int]
"""One number for all image axes, or one per image axis, outermost (rows) first."""


class ParameterKind(StrEnum):
    """Type of a parameter's value, and its notation as text."""

    SIZE = "size"
    """An integer of at least 1."""
    PER_AXIS = "per axis"
    """One integer, or one per image axis as a comma list."""
    FLAG = "flag"
    """0 or 1."""
    CHOICE = "choice"
    """One of a few words."""
    DTYPES = "dtypes"
    """A comma list of element types."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of an operator, as the command line and ``cpembed operators`` show it.

    ``default`` is the default as text, None for a required parameter. ``choices`` are the words of
    a ``CHOICE``; a number within one stands for any (``NCHW16c``).
    """

    name: str
    meaning: str
    kind: ParameterKind = ParameterKind.SIZE
    default: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is None


def matches_choice(choice: str, value: str) -> bool:
    """True if a value matches a choice, where each number in the choice matches any from 1 up.

    >>> matches_choice("NCHW16c", "NCHW64c"), matches_choice("NCHW16c", "NHWC")
    (True, False)
    """
    # A function, because a replacement text would be read for escapes.
    pattern = re.sub(r"\d+", lambda _: r"[1-9]\d{0,8}", re.escape(choice))
    return re.fullmatch(pattern, value) is not None


DTYPE = Parameter(
    "dtype",
    "element types: one for the inputs, one each, or one each and the output's",
    ParameterKind.DTYPES,
    "int8",
)


W = TypeVar("W")
"""Type of a workload."""


@dataclass(frozen=True)
class Family(Generic[W]):
    """Workloads of one name whose sizes are open; :meth:`workload` fixes them.

    Attributes
    ----------
    name, description : str
        The name on the command line, and one line for people.
    build : callable
        Function from typed parameters, by keyword, to the workload.
    parameters : tuple of Parameter
        The parameters, required ones first.
    """

    name: str
    description: str
    build: Callable[..., W]
    parameters: tuple[Parameter, ...]

    @property
    def required(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.required)

    @property
    def optional(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.required)

    @property
    def usage(self) -> str:
        """Names of the parameters, in one line."""
        required = " ".join(p.name for p in self.required)
        optional = " ".join(p.name for p in self.optional)
        return f"{self.name} takes {required} [{optional}]"

    def error(self, problem: str) -> WorkloadError:
        """Make an error that ends in the operator's parameters."""
        return WorkloadError(f"{self.name}: {problem}; {self.usage}")

    def __call__(self, **values: object) -> W:
        """Call :meth:`workload` with keyword arguments."""
        return self.workload(values)

    def workload(self, values: Mapping[str, object]) -> W:
        """Fix the sizes, given as text (``"1,2"``) or as Python values.

        Raises :class:`WorkloadError` for a missing, unknown or malformed value.
        """
        return self.build(**self.typed(values))

    def typed(self, values: Mapping[str, object]) -> dict[str, object]:
        """Convert values to integers, tuples of integers, booleans and words, as ``build`` takes.

        Raises :class:`WorkloadError` for a missing, unknown or malformed value.
        """
        parameters = {parameter.name: parameter for parameter in self.parameters}
        # Unknown names first: a misspelled one is missing too, which would not say why.
        unknown = [name for name in values if name not in parameters]
        if unknown:
            raise self.error(f"unknown parameter {unknown[0]!r}")
        missing = [parameter.name for parameter in self.required if parameter.name not in values]
        if missing:
            raise self.error(f"missing {' '.join(missing)}")
        return {name: self._typed(parameters[name], value) for name, value in values.items()}

    def settings(self, values: Mapping[str, object]) -> dict[str, object]:
        """Convert values as :meth:`typed` does, and fill in the defaults."""
        defaults = {p.name: p.default for p in self.optional}
        return self.typed({**defaults, **values})

    def _typed(self, parameter: Parameter, value: object) -> object:
        # Values of Python are checked by `build`, whatever way they came.
        if not isinstance(value, str):
            return value
        text = value.strip()
        match parameter.kind:
            case ParameterKind.SIZE:
                return self._integer(parameter.name, text)
            case ParameterKind.PER_AXIS:
                numbers = tuple(self._integer(parameter.name, part) for part in text.split(","))
                return numbers[0] if len(numbers) == 1 else numbers
            case ParameterKind.FLAG:
                if text not in ("0", "1"):
                    raise self.error(f"{parameter.name}={text} is neither 0 nor 1")
                return text == "1"
            case _:
                return text

    def _integer(self, name: str, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{name}={text} is not an integer") from None

    # -- checks that the build functions share ----------------------------------------------------

    def check_sizes(self, **sizes: int) -> None:
        """Check that every value is an integer of at least 1."""
        for name, value in sizes.items():
            self._check_integer(name, value, 1)

    def check_choice(self, name: str, value: str) -> None:
        """Check that a word is one of a parameter's choices."""
        choices = next(p.choices for p in self.parameters if p.name == name)
        if not any(matches_choice(choice, value) for choice in choices):
            raise self.error(f"{name}={value} is none of {' '.join(choices)}")

    def per_axis(self, name: str, value: PerAxis, axes: int, minimum: int) -> tuple[int, ...]:
        """Expand a parameter to one checked integer per image axis.

        Parameters
        ----------
        name : str
            The parameter, for messages.
        value : int or sequence of int
            One number for all axes or one per axis, outermost first.
        axes : int
            Number of image axes.
        minimum : int
            Smallest allowed number.
        """
        numbers = (value,) * axes if isinstance(value, int) else tuple(value)
        if len(numbers) != axes:
            raise self.error(
                f"{name} has {len(numbers)} numbers; give one, or one per image axis ({axes})"
            )
        for number in numbers:
            self._check_integer(name, number, minimum)
        return numbers

    def dtypes(self, dtype: Dtypes, inputs: int) -> tuple[str, ...]:
        """Resolve the element types of the inputs, in order, and of the output."""
        try:
            return resolve_dtypes(dtype, inputs)
        except WorkloadError as error:
            raise WorkloadError(f"{self.name}: {error}") from None

    def _check_integer(self, name: str, value: int, minimum: int) -> None:
        # A bool is an int: `True` would pass silently as size 1.
        if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self.error(f"{name}={value!r} is not an integer")
        if value < minimum:
            raise self.error(f"{name}={value} is less than {minimum}")


@dataclass(frozen=True)
class OperatorFamily(Family[Computation]):
    """An operator whose sizes are open.

    >>> from cpembed.workloads.einsum import gemm
    >>> gemm.usage
    'gemm takes m n k [trans_a trans_b dtype]'
    >>> gemm(m=4, n=4, k=8).extents
    {'m': 4, 'n': 4, 'k': 8}

    ``inputs`` is the number of input operands.
    """

    inputs: int = 2

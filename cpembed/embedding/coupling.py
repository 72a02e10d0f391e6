"""Coupling of register maps: the result of one instruction as a factor of the next one.

Each lane of a warp holds elements of a tile in its registers. The result of a product can be a
factor of another one without leaving the registers if every lane already holds the elements that
the second instruction expects of it. The second product sums over one coordinate of the matrix
between them, in any order as long as its other factor follows the same order, so that this
coordinate may be permuted; the other coordinate may not.

Which register becomes which, and the permutation, are variables of a CP-SAT model; :func:`holds`
judges its answers element by element.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpembed.errors import InvariantError


@dataclass(frozen=True)
class RegisterMap:
    """Registers of lanes that hold a tile.

    Attributes
    ----------
    name : str
        Name of the matrix, for messages.
    positions : tuple of tuple of (int, int)
        Coordinates ``(preserved, summed)`` of each register's element, by lane. The second product
        sums over the latter coordinate.
    """

    name: str
    positions: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def lanes(self) -> int:
        return len(self.positions)

    @property
    def registers(self) -> int:
        """Number of elements that a lane holds."""
        return len(self.positions[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Extents of the preserved and the summed coordinate."""
        places = [place for lane in self.positions for place in lane]
        return 1 + max(row for row, _ in places), 1 + max(column for _, column in places)

    def tiled(self, repeats: tuple[int, int]) -> RegisterMap:
        """Return the map of a grid of tiles; registers count tile by tile, row by row.

        Parameters
        ----------
        repeats : tuple of int
            Number of tiles along the preserved and the summed coordinate.
        """
        rows, columns = self.shape
        return RegisterMap(
            self.name,
            tuple(
                tuple(
                    (i * rows + row, j * columns + column)
                    for i in range(repeats[0])
                    for j in range(repeats[1])
                    for row, column in lane
                )
                for lane in self.positions
            ),
        )


@dataclass(frozen=True)
class Coupling:
    """Registers of the result that are registers of the factor.

    Attributes
    ----------
    results, factors : tuple of int
        Number of tiles of the result and of the factor, along the preserved and the summed
        coordinate, that have the same elements.
    sources : tuple of int
        Register of the result (counted over its tiles) that each register of the factor is.
    order : tuple of int
        Summed coordinate of the result at each summed coordinate of the factor.
    """

    results: tuple[int, int]
    factors: tuple[int, int]
    sources: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def is_ordered(self) -> bool:
        """True if the summed coordinate is not permuted."""
        return self.order == tuple(range(len(self.order)))

    @property
    def digits(self) -> tuple[int, ...]:
        """Binary digit of the result's coordinate by that of the factor's, least first."""
        return tuple(self.order[1 << bit].bit_length() - 1 for bit in range(_bits(self.order)))


@dataclass(frozen=True)
class Mismatch:
    """Reason why no registers couple."""

    reason: str


def couple(result: RegisterMap, factor: RegisterMap) -> Coupling | Mismatch:
    """Find registers of a result that are those of a factor.

    Parameters
    ----------
    result, factor : RegisterMap
        Maps of a tile of the result and of the factor.

    Returns
    -------
    Coupling or Mismatch
        The coupling that moves the fewest digits of the summed coordinate, or why there is none.
    """
    shape = tuple(math.lcm(a, b) for a, b in zip(result.shape, factor.shape, strict=True))
    results = (shape[0] // result.shape[0], shape[1] // result.shape[1])
    factors = (shape[0] // factor.shape[0], shape[1] // factor.shape[1])
    wide, target = result.tiled(results), factor.tiled(factors)
    if wide.lanes != target.lanes:
        return Mismatch(f"{result.name} has {wide.lanes} lanes, {factor.name} {target.lanes}")
    reason = _lane_mismatch(wide, target)
    if reason is not None:
        return Mismatch(reason)
    answer = _solve(wide, target, shape[1])
    if answer is None:
        return Mismatch(
            f"no order of the {shape[1]} summed elements puts those that a lane holds of "
            f"{result.name} where it expects them in {factor.name}"
        )
    coupling = Coupling(results, factors, *answer)
    if not holds(coupling, result, factor):
        raise InvariantError(f"a coupling of {result.name} and {factor.name} does not hold")
    return coupling


def holds(coupling: Coupling, result: RegisterMap, factor: RegisterMap) -> bool:
    """Return True if every register of the factor has the element that its lane expects.

    Independent of the model: all lanes and registers are compared one by one.

    Parameters
    ----------
    coupling : Coupling
    result, factor : RegisterMap
        Maps of a tile of the result and of the factor.
    """
    wide, target = result.tiled(coupling.results), factor.tiled(coupling.factors)
    if sorted(coupling.sources) != list(range(wide.registers)):
        return False
    if sorted(coupling.order) != list(range(len(coupling.order))):
        return False
    return wide.registers == target.registers and all(
        present[source] == (row, coupling.order[column])
        for present, expected in zip(wide.positions, target.positions, strict=True)
        for source, (row, column) in zip(coupling.sources, expected, strict=True)
    )


def _lane_mismatch(wide: RegisterMap, target: RegisterMap) -> str | None:
    """Return the first lane whose preserved coordinates differ, whatever the order of the sum."""
    for lane, (present, expected) in enumerate(zip(wide.positions, target.positions, strict=True)):
        rows, needed = (sorted({row for row, _ in places}) for places in (present, expected))
        if rows != needed:
            return (
                f"lane {lane} holds rows {_numbers(rows)} of {wide.name}, and is expected to hold "
                f"rows {_numbers(needed)} of {target.name}"
            )
    return None


def _numbers(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:4])) + (" …" if len(rows) > 4 else "")


def _bits(order: Sequence[int]) -> int:
    return len(order).bit_length() - 1


def _solve(
    wide: RegisterMap, target: RegisterMap, extent: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sources and the order; None if there are none."""
    if wide.registers != target.registers or extent & (extent - 1):
        return None
    # Imported on first use, which takes a third of a second.
    from ortools.sat.python import cp_model as solver

    model = solver.CpModel()
    count, bits = wide.registers, extent.bit_length() - 1
    sources = [model.new_int_var(0, count - 1, f"source {n}") for n in range(count)]
    model.add_all_different(sources)
    # A permutation of binary digits, which loops and addresses can follow: moves[a][b] is 1 where
    # digit a of the factor's coordinate is digit b of the result's.
    moves: list[list[Any]] = [
        [model.new_bool_var(f"digit {a} from {b}") for b in range(bits)] for a in range(bits)
    ]
    for number in range(bits):
        model.add_exactly_one(moves[number])
        model.add_exactly_one(row[number] for row in moves)
    order = [model.new_int_var(0, extent - 1, f"order {n}") for n in range(extent)]
    for number, variable in enumerate(order):
        # The coordinate's digits, each at its new place.
        model.add(
            variable
            == sum(
                (1 << b) * moves[a][b] for a in range(bits) if number >> a & 1 for b in range(bits)
            )
        )
    for present, expected in zip(wide.positions, target.positions, strict=True):
        for source, (row, column) in zip(sources, expected, strict=True):
            # Registers of the same preserved coordinate, with the summed one that they hold.
            tuples = [(n, place[1]) for n, place in enumerate(present) if place[0] == row]
            if not tuples:
                return None
            model.add_allowed_assignments([source, order[column]], tuples)
    model.minimize(sum(moves[a][b] for a in range(bits) for b in range(bits) if a != b))
    search = solver.CpSolver()
    search.parameters.num_workers = 1
    search.parameters.random_seed = 0
    if search.solve(model) not in (solver.OPTIMAL, solver.FEASIBLE):
        return None
    return tuple(map(search.value, sources)), tuple(map(search.value, order))

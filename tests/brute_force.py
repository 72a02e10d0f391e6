"""Ground truth: every embedding of a tiny problem, enumerated from the definitions.

Definitions: docs/embedding.md, "Ground truth".

Written from the page. Of the package it takes what texts and files are read into; it shares nothing
with the models, nor with the checks of the constraints.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cpembed.hw.instruction import Instruction
from cpembed.ir.computation import Computation
from cpembed.resources import constraint_files
from tests.enumeration.nodes import AxisMaps, Digit, Nodes, Task
from tests.enumeration.roles import role_assignments
from tests.enumeration.rules import Rules, Tables, read_tables

Key = tuple[object, ...]
"""Roles; for each instruction axis its extent and its digits, each with its members, count and
stride; and the origin where it is not 0."""


class TooLarge(Exception):
    """The problem has more candidates than the budget: not tiny enough for brute force."""


def shipped_tables(name: str) -> Tables:
    """The tables of a shipped set."""
    return read_tables(Path(constraint_files()[name]))


def embeddings(
    workload: Computation, instruction: Instruction, tables: Tables, budget: int = 4_000
) -> set[Key]:
    """Every embedding of an instruction in a workload under a set.

    Raises :class:`TooLarge` after ``budget`` candidates.
    """
    commute = tables.get("dataflow", {}).get("commute", False)
    keys: set[Key] = set()
    left = iter(range(budget, -1, -1))
    for roles in role_assignments(workload, instruction, commute=commute):
        task = Task(workload, instruction, roles)
        rules = Rules(tables, task)
        axes = [axis.name for axis in instruction.axes]
        for sizes in itertools.product(*(axis.allowed for axis in instruction.axes)):
            extents = dict(zip(axes, sizes, strict=True))
            for maps in _axis_maps(rules, extents, left):
                for origin in _origins(rules, maps):
                    _spend(left)
                    if rules.hold(Nodes(task, extents, maps, origin)):
                        keys.add(_key(task, extents, maps, origin))
    return keys


def _spend(left: Iterator[int]) -> None:
    if next(left, 0) == 0:
        raise TooLarge


def _key(task: Task, extents: Mapping[str, int], maps: AxisMaps, origin: Mapping[str, int]) -> Key:
    digits = tuple(
        (extents[name], tuple((d.members, d.count, d.stride) for d in maps[name]))
        for name in extents
    )
    return task.roles.names, digits, tuple(sorted((a, at) for a, at in origin.items() if at))


def _axis_maps(
    rules: Rules, extents: Mapping[str, int], left: Iterator[int]
) -> Iterator[dict[str, tuple[Digit, ...]]]:
    """Digits for all instruction axes, each workload axis in one of them at most."""
    choices: list[list[tuple[Digit, ...]]] = []
    for name, extent in extents.items():
        # Of an embedding, the digits of an axis are one as well, the other axes at extent 1.
        sizes = {other: extent if other == name else 1 for other in extents}
        lists: list[tuple[Digit, ...]] = []
        for digits in _digit_lists(rules, extent):
            _spend(left)
            if rules.allows_on_axis(name, extent, digits) and rules.keep_apart(
                Nodes(rules.task, sizes, {name: digits}, {})
            ):
                lists.append(digits)
        choices.append(lists)
    for combination in itertools.product(*choices):
        members = [m for digits in combination for digit in digits for m in digit.members]
        if len(set(members)) == len(members):
            yield dict(zip(extents, combination, strict=True))


def _digit_lists(
    rules: Rules, extent: int, used: frozenset[str] = frozenset()
) -> Iterator[tuple[Digit, ...]]:
    """Lists of digits whose counts multiply to an extent."""
    if extent == 1:
        yield ()
        return
    for count in (n for n in range(2, extent + 1) if extent % n == 0):
        for digit in rules.digits(count):
            if not used & set(digit.members):
                for outer in _digit_lists(rules, extent // count, used | set(digit.members)):
                    yield (digit, *outer)


def _origins(rules: Rules, maps: AxisMaps) -> Iterator[dict[str, int]]:
    """Where the first point may lie: without ``fixed_origin``, wherever the last one allows."""
    if "fixed_origin" in rules.tables:
        yield {}
        return
    reach = {d.members[0]: (d.count - 1) * d.stride for ds in maps.values() for d in ds}
    places: list[Sequence[int]] = [
        range(rules.points(axis) - reach.get(axis, 0)) for axis in rules.extents
    ]
    for at in itertools.product(*places):
        yield dict(zip(rules.extents, at, strict=True))

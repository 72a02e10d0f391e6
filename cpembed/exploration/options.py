"""Options of ``explore``: what varies, by which method machines are searched, and what is kept.

>>> ExploreOptions(vary=["instruction.axes.x=8,16"]).method
'exact'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cpembed.driver.options import LARGEST_SEED, LONGEST_TIMEOUT, option

Method = Literal["exact", "gp", "tpe", "nsga2", "random"]
"""The proven search of a space, and the methods that sample it."""


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Options of an exploration: additions to a space, its search, and the store of its costs."""

    vary: Sequence[str] = option(
        (),
        "A key of the target's file and its values, as in instruction.axes.x=8,16,32 or "
        "memories.buffer.capacity_bytes=16KiB..256KiB*2; ranges are a..b, a..b+step and "
        "a..b*factor, and absent removes the key. May be repeated.",
        metavar="KEY=VALUES",
        multiple=True,
    )
    derived: Sequence[str] = option(
        (),
        "A key that follows from others, as in machines.soc.compute.cycles=instruction.axes.x. "
        "May be repeated.",
        flag="--derive",
        metavar="KEY=EXPRESSION",
        multiple=True,
    )
    where: Sequence[str] = option(
        (),
        "A relation that points have to satisfy, as in 'instruction.axes.x <= "
        "instruction.axes.y'. May be repeated.",
        metavar="RELATION",
        multiple=True,
    )
    machine: str | None = option(
        None, "Machine of the target.  [default: the first one]", metavar="NAME"
    )
    technology: str | None = option(
        None, "Tables of the target's area and energy.  [default: 45nm]", metavar="NAME"
    )
    constraints: str | None = option(
        None,
        "Constraint set of the target's embeddings.  [default: its own]",
        metavar="NAME|FILE",
    )
    shapes: Mapping[str, Sequence[int]] | None = option(
        None, "Sizes of a model's inputs that it leaves open.", hidden=True
    )
    layers: str | None = option(None, "Only these layers of the suite.", metavar="0,3,10-20")
    method: Method = option(
        "exact",
        "exact: every point is evaluated, or discarded by lower bounds, so that the front is "
        "proven; the others propose points: gp by Gaussian processes, tpe by Parzen estimators, "
        "nsga2 by a genetic algorithm.",
        choices=get_args(Method),
    )
    bounds: bool = option(True, "False makes `exact` evaluate every machine.", hidden=True)
    trials: int = option(
        40,
        "Points that are evaluated, by methods that propose them.",
        metavar="N",
        limits=(1, None),
    )
    population: int = option(
        10, "Population of nsga2.  [default: 10]", metavar="N", limits=(2, None)
    )
    distinct: bool = option(
        True,
        "False counts every proposal of a machine as a trial, as some publications do.",
        hidden=True,
    )
    objectives: Sequence[str] | None = option(
        None,
        "Objectives to minimise, as a comma list: cycles, time, energy, area, power, edp, or "
        "numbers that vary.  [default: those of the space, else cycles,energy,area; of a target "
        "time,energy,area, or time without tables]",
        metavar="NAMES",
    )
    limits: Sequence[str] = option(
        (),
        "The largest value of an objective, with its unit: power=2W, area=1.5mm2, energy=3mJ, "
        "time=20ms, cycles=1e9. May be repeated.",
        flag="--limit",
        metavar="NAME=VALUE",
        multiple=True,
    )
    seed: int = option(0, "Seed of the method.", metavar="N", limits=(0, LARGEST_SEED))
    timeout: float | None = option(
        None,
        "Stop after S seconds and print the front so far.",
        metavar="S",
        limits=(0, LONGEST_TIMEOUT),
    )
    fresh: bool = option(False, "Start over instead of using stored results.")
    results: Path | None = option(
        None, "Folder that keeps costs.  [default: the user's cache folder]", metavar="DIR"
    )

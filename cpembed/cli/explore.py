"""``cpembed explore``: which machines of a space are the best for the layers of a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpembed.cli.cluster_options import workers_of, workers_options
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.match import shapes_option
from cpembed.cli.options import (
    Subcommand,
    file_option,
    folder_option,
    json_option,
    seed_option,
    timeout_option,
)
from cpembed.cli.output import Bar, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.exploration.costing import Method
    from cpembed.exploration.explore import Exploration, ExploreResult
    from cpembed.exploration.points import EvaluatedPoint


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@click.command(cls=Subcommand)
@click.argument("space", type=click.Path(path_type=Path), metavar="SPACE.toml")
@click.argument("suite", metavar="SUITE|MODEL")
@shapes_option
@click.option("--layers", metavar="0,3,10-20", help="Only these layers of the suite.")
@click.option(
    "--method",
    type=click.Choice(["exact", "gp", "tpe", "nsga2", "random"]),
    default="exact",
    show_default=True,
    help="exact: every point is evaluated, or discarded by lower bounds: the front is proven; "
    "the others propose points: gp by Gaussian processes, tpe by Parzen estimators, nsga2 by a "
    "genetic algorithm.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    metavar="N",
    help="Points that are evaluated, by methods that propose them.",
)
@click.option(
    "--population",
    type=click.IntRange(min=2),
    metavar="N",
    help="Of nsga2.  [default: 10]",
)
@click.option(
    "--objectives",
    callback=_names,
    metavar="NAMES",
    help="What is to be small, as a comma list: cycles, time, energy, area, power, edp.  "
    "[default: those of the space, else cycles,energy,area]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="The largest value of an objective, with its unit: power=2W, area=1.5mm2, energy=3mJ, "
    "time=20ms, cycles=1e9. May be repeated.",
)
@seed_option("Seed of the method.")
@timeout_option("Stop after S seconds and say what was found until then.")
@workers_options
@click.option("--top", type=click.IntRange(min=1), metavar="K", help="Print K rows of the front.")
@click.option(
    "--pick",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="An evaluated point by its number: print each layer's software on it.",
)
@file_option("--save-target", "Write the machine of --pick, else the front's first, as a target.")
@file_option("--certificate", "Write what became of every point as JSON (exact).")
@file_option("--plot", "Draw the front into an SVG file.")
@click.option("--fresh", is_flag=True, help="Start over; without it, what is kept is used.")
@folder_option("--results", "Folder that keeps costs.  [default: the user's cache folder]")
@json_option
def command(
    *,
    space: Path,
    suite: str,
    shapes: dict[str, tuple[int, ...]],
    layers: str | None,
    method: Method,
    trials: int,
    population: int | None,
    objectives: list[str] | None,
    limits: tuple[str, ...],
    seed: int,
    timeout: float | None,
    top: int | None,
    pick: int | None,
    save_target: Path | None,
    certificate: Path | None,
    plot: Path | None,
    fresh: bool,
    results: Path | None,
    as_json: bool,
) -> int:
    """Find the machines of a space that are the best for the layers of SUITE: a front, as no
    machine is the best in every respect.

    SPACE.toml names a family of machines and the values of its parameters; SUITE is as for `bench`.
    What is found out is kept as soon as it is there: an interrupted exploration goes on where it
    stopped.

    \b
    cpembed explore vta.toml resnet50 --objectives cycles,energy,area
    cpembed explore gemm.toml resnet50 --limit power=2W --pick 17 --save-target core.toml
    cpembed explore gemm.toml resnet50 --method gp --trials 40 --objectives time,power,area
    """
    from cpembed.exploration.explore import open_exploration
    from cpembed.exploration.sampled import POPULATION

    _check(method, population, certificate, plot)
    exploration = open_exploration(
        space,
        suite,
        method=method,
        trials=trials,
        objectives=objectives,
        limits=limits,
        layers=layers,
        shapes=shapes or None,
        population=population or POPULATION,
        seed=seed,
        timeout=timeout,
        results=results,
        fresh=fresh,
    )

    def interrupted() -> str:
        kept = f"what was found out is kept in {exploration.store.path}"
        return f"interrupted: {kept}; the same command{' without --fresh' * fresh} goes on"

    with Stop("evaluation", interrupted) as stop:
        _run(exploration, stop)
    result = exploration.result()
    for failure in result.failures:
        message(failure)
    if stop.asked:
        message(interrupted())
        if not result.front:
            return INTERRUPTED
    picked = _picked(result, pick)
    _write(result, picked, save_target, certificate, plot)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.explore import report

        print_text(*report(result, top, picked if pick is not None else None))
    return INTERRUPTED if stop.asked else result.exit_code()


def _check(
    method: Method, population: int | None, certificate: Path | None, plot: Path | None
) -> None:
    """Before hours are spent on what cannot be written."""
    from cpembed.report.bench_plot import require_matplotlib

    if population is not None and method != "nsga2":
        problem = f"--population is of nsga2, not of {method}: leave it out"
        raise click.UsageError(problem, click.get_current_context())
    if certificate is not None and method != "exact":
        problem = f"--certificate is of exact: {method} proves nothing"
        raise click.UsageError(problem, click.get_current_context())
    if plot is not None:
        require_matplotlib()


def _run(exploration: Exploration, stop: Stop) -> None:
    with workers_of() as workers, Bar("", None) as bar:
        steps = exploration.run(workers)
        for step in steps:
            bar.show(step.doing, often=True, total=step.total, completed=step.done)
            if stop.asked:
                break
        steps.close()


def _picked(result: ExploreResult, pick: int | None) -> EvaluatedPoint | None:
    """The point of a number; the first of the front where none is given."""
    from cpembed.errors import CpembedError

    if pick is None:
        return result.front[0] if result.front else None
    found = result.picked(pick)
    if found is None:
        raise CpembedError(
            f"point {pick} was not evaluated: pick one whose number is printed (--json lists all)"
        )
    return found


def _write(
    result: ExploreResult,
    picked: EvaluatedPoint | None,
    target: Path | None,
    certificate: Path | None,
    plot: Path | None,
) -> None:
    import json

    from cpembed.files import write_whole

    if target is not None:
        if picked is None:
            message("there is no front, and so no target to save")
        else:
            write_whole(target, result.space.family.specification(picked.point))
    if certificate is not None:
        write_whole(certificate, json.dumps(result.certificate(), indent=2) + "\n")
    if plot is not None:
        from cpembed.report.explore_plot import plot_svg

        write_whole(plot, plot_svg(result))

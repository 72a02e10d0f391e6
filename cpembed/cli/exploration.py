"""``cpembed explore`` and ``shape``: the best machines, or instruction shapes, for a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli import options
from cpembed.cli.completion import suites
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.outcome import INFEASIBLE, STOPPED
from cpembed.cli.output import Bar, message, print_report

if TYPE_CHECKING:
    from cpembed.exploration.costing import Method
    from cpembed.exploration.explore import Exploration, ExploreResult
    from cpembed.exploration.objectives import EvaluatedPoint


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    """Return the names of a comma list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@click.command("explore", cls=options.Subcommand)
@click.argument("space", type=click.Path(path_type=Path), metavar="SPACE.toml")
@click.argument("suite", metavar="SUITE|MODEL")
@options.shapes_option
@click.option("--layers", metavar="0,3,10-20", help="Only these layers of the suite.")
@click.option(
    "--method",
    type=click.Choice(["exact", "gp", "tpe", "nsga2", "random"]),
    default="exact",
    show_default=True,
    help="exact: every point is evaluated, or discarded by lower bounds, so that the front is "
    "proven; the others propose points: gp by Gaussian processes, tpe by Parzen estimators, nsga2 "
    "by a genetic algorithm.",
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
    help="Population of nsga2.  [default: 10]",
)
@click.option(
    "--objectives",
    callback=_names,
    metavar="NAMES",
    help="Objectives to minimise, as a comma list: cycles, time, energy, area, power, edp.  "
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
@options.seed_option("Seed of the method.")
@options.timeout_option("Stop after S seconds and print the front so far.")
@options.workers_options
@click.option("--top", type=click.IntRange(min=1), metavar="K", help="Print K rows of the front.")
@click.option(
    "--pick",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Number of an evaluated point: print the program of each layer on it.",
)
@options.file_option(
    "--save-target", "Write the machine of --pick, else the front's first, as a target."
)
@options.file_option("--certificate", "Write the fate of every point as JSON (exact).")
@options.file_option("--plot", "Draw the front into an SVG file.")
@click.option("--fresh", is_flag=True, help="Start over instead of using stored results.")
@options.folder_option("--results", "Folder that keeps costs.  [default: the user's cache folder]")
@options.json_option
def explore_command(
    *,
    space: Path,
    suite: str,
    shapes: dict[str, tuple[int, ...]],
    method: Method,
    population: int | None,
    top: int | None,
    pick: int | None,
    save_target: Path | None,
    certificate: Path | None,
    plot: Path | None,
    fresh: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Find the machines of a space that are the best for the layers of SUITE: a front, since no
    machine is the best in every respect.

    SPACE.toml names a family of machines and the values of its parameters; SUITE is as for `bench`.
    Results are kept as they arrive: an interrupted exploration continues where it stopped.

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
        shapes=shapes or None,
        population=population or POPULATION,
        fresh=fresh,
        **values,
    )

    def interrupted() -> str:
        location = f"results are kept in {exploration.store.path}"
        return f"interrupted: {location}; the same command{' without --fresh' * fresh} continues"

    with Stop("evaluation", interrupted) as stop:
        _run(exploration, stop)
    result = exploration.result()
    for failure in result.failures:
        message(failure)
    if stop.requested:
        message(interrupted())
        if not result.front:
            return INTERRUPTED
    picked = _picked(result, pick)
    _write(result, picked, save_target, certificate, plot)
    from cpembed.report.explore import report

    detail = None if pick is None else picked
    print_report(result, lambda: report(result, top, detail), as_json=as_json)
    return INTERRUPTED if stop.requested else result.exit_code()


def _check(
    method: Method, population: int | None, certificate: Path | None, plot: Path | None
) -> None:
    """Raise errors on options before hours are spent on what cannot be written."""
    from cpembed.report.plots import require_matplotlib

    if population is not None and method != "nsga2":
        problem = f"--population applies to nsga2, not to {method}: leave it out"
        raise click.UsageError(problem, click.get_current_context())
    if certificate is not None and method != "exact":
        problem = f"--certificate applies to exact: {method} proves nothing"
        raise click.UsageError(problem, click.get_current_context())
    if plot is not None:
        require_matplotlib()


def _run(exploration: Exploration, stop: Stop) -> None:
    with options.workers_of() as workers, Bar() as bar:
        steps = exploration.run(workers)
        for step in steps:
            bar.show(step.doing, often=True, total=step.total, completed=step.completed)
            if stop.requested:
                break
        steps.close()


def _picked(result: ExploreResult, pick: int | None) -> EvaluatedPoint | None:
    """Return the point of a number; without a number, the first of the front."""
    from cpembed.errors import CpembedError

    if pick is None:
        return result.front[0] if result.front else None
    point = result.picked(pick)
    if point is None:
        raise CpembedError(
            f"point {pick} was not evaluated: pick one whose number is printed (--json lists all)"
        )
    return point


def _write(
    result: ExploreResult,
    picked: EvaluatedPoint | None,
    target: Path | None,
    certificate: Path | None,
    plot: Path | None,
) -> None:
    """Write the files of ``--save-target``, ``--certificate`` and ``--plot``."""
    import json

    from cpembed.files import write_whole

    if target is not None:
        if picked is None:
            message("there is no front, hence no target to save")
        else:
            write_whole(target, result.space.family.specification(picked.point))
    if certificate is not None:
        write_whole(certificate, json.dumps(result.certificate(), indent=2) + "\n")
    if plot is not None:
        from cpembed.report.plots import front_svg

        write_whole(plot, front_svg(result))


@click.command("shape", cls=options.Subcommand)
@click.argument("suite", metavar="SUITE|MODEL", shell_complete=suites)
@click.option(
    "--macs",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Maximum number of multiply-accumulates of one execution: x*y*z.",
)
@click.option(
    "--shapes",
    "count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="Number of shapes to find; each layer uses its best one.",
)
@options.constraints_option("Constraint set of the embeddings.  [default: in_place_padded]")
@click.option("--powers", is_flag=True, help="Only extents that are powers of two.")
@click.option(
    "--smallest",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Minimum extent.",
)
@click.option(
    "--packing",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Count packing: BYTES that it copies cost as much as an execution.  [default: not "
    "counted]",
)
@click.option(
    "--layouts",
    is_flag=True,
    help="With --packing and a MODEL: tensors stay packed between layers, and only copies from one "
    "layout to another count.",
)
@click.option(
    "--buffer",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Maximum size of the tiles of a shape's operands.",
)
@click.option(
    "--total-macs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of multiply-accumulates of all shapes together.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0, max=1000),
    metavar="PERCENT",
    help="List all shapes, or sets of shapes, that cost at most PERCENT more than the best.",
)
@options.shapes_option
@options.timeout_option("Stop after S seconds and print the best shapes so far, with the gap.")
@options.file_option(
    "--save", "Write the shapes as targets: FILE, or FILE_<shape>.toml if several."
)
@options.workers_options
@options.json_option
def shape_command(
    *,
    suite: str,
    macs: int,
    count: int,
    constraints: str | None,
    powers: bool,
    smallest: int,
    packing: int | None,
    layouts: bool,
    buffer: int | None,
    total_macs: int | None,
    within: float | None,
    shapes: dict[str, tuple[int, ...]],
    timeout: float | None,
    save: Path | None,
    as_json: bool,
) -> int:
    """Find the shape of a matrix-product instruction that computes SUITE in the fewest executions.

    The instruction is C[x,y] += A[x,z] * B[z,y]. The best one or K of all shapes (x, y, z) with
    x*y*z of at most --macs are found and proven: each layer of the suite or model counts with its
    best embedding, times how often the network has it.

    \b
    cpembed shape resnet50 --macs 256
    cpembed shape deepbench --macs 1024 --shapes 2 --constraints complete
    cpembed shape model.onnx --macs 4096 --powers --save best.toml
    cpembed shape model.onnx --macs 256 --packing 64 --layouts
    """
    from cpembed.exploration.shapes.shape import check_file

    if save is not None:
        check_file(save)
    if layouts and packing is None:
        raise click.UsageError("--layouts needs --packing: bytes that cost as much as an execution")
    if layouts and within is not None and count > 1:
        raise click.UsageError("--within with --layouts lists single shapes: leave --shapes out")
    with options.workers_of() as executing:
        from cpembed.embedding.constraint_set import load_constraint_set
        from cpembed.exploration.shapes.finding import find_shapes
        from cpembed.exploration.shapes.question import DEFAULT_SET, Question
        from cpembed.exploration.shapes.shape import Cost, Model, Scope

        question = Question(
            Scope(macs, powers, smallest),
            count,
            load_constraint_set(constraints or DEFAULT_SET),
            Cost(packing),
            buffer,
            total_macs,
            timeout,
            layouts,
            within,
        )
        with Bar() as bar:

            def progress(text: str, done: int, total: int) -> None:
                bar.show(text, often=True, completed=done, total=total)

            model = Model(suite, inputs=shapes or None)
            result = find_shapes(model, question, executing, progress)
    if save is not None and result.shapes:
        from cpembed.exploration.shapes.shape import save as save_targets

        for file in save_targets(save, result.shapes, question.constraints.name):
            message(f"target {file}")
    code = 0
    if not result.shapes:
        code = INFEASIBLE if result.infeasible else STOPPED
        message(result.why_nothing)
    from cpembed.report.shape import report

    print_report(result, lambda: report(result), as_json=as_json)
    return code

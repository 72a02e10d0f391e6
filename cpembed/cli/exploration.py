"""``cpembed explore`` and ``shape``: the best machines, or instruction shapes, for a suite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli import model_options, options, worker_options
from cpembed.cli.completion import suites, targets
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.output import INFEASIBLE, STOPPED, Bar, message, print_report

if TYPE_CHECKING:
    from cpembed.exploration.costing import Method
    from cpembed.exploration.explore import Exploration, ExploreResult
    from cpembed.exploration.objectives import EvaluatedPoint
    from cpembed.exploration.shapes.question import ShapeResult


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    """Return the names of a comma list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _multiples(context: click.Context, option: click.Parameter, text: str) -> tuple[int, int, int]:
    """Return the divisors of the extents of x, y and z: one number, or one by axis."""
    numbers = {"x": 1, "y": 1, "z": 1}
    for part in text.split(","):
        axis, equals, number = part.strip().rpartition("=")
        if (
            not number.isdecimal()
            or not 1 <= int(number) <= 65_536
            or (equals and axis not in numbers)
        ):
            problem = f"{text!r} is neither a number, such as 4, nor one by axis, such as x=1,y=8"
            raise click.BadParameter(problem, context, option)
        numbers |= {axis: int(number)} if equals else dict.fromkeys(numbers, int(number))
    return numbers["x"], numbers["y"], numbers["z"]


@dataclass(frozen=True, kw_only=True)
class ExploreArguments:
    """Command line of ``cpembed explore``, without options that the library takes."""

    space: str
    suite: str
    shapes: dict[str, tuple[int, ...]]
    method: Method
    population: int | None
    top: int | None
    pick: int | None
    save_target: Path | None
    certificate: Path | None
    plot: Path | None
    page: Path | None
    fresh: bool
    as_json: bool


@click.command("explore", cls=options.Subcommand)
@click.argument("space", metavar="SPACE.toml|TARGET")
@click.argument("suite", metavar="SUITE|MODEL")
@model_options.shapes_option
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=VALUES",
    help="A key of the target's file and its values, as in instruction.axes.x=8,16,32 or "
    "memories.buffer.capacity_bytes=16KiB..256KiB*2; ranges are a..b, a..b+step and a..b*factor, "
    "and absent removes the key. May be repeated.",
)
@click.option(
    "--derive",
    "derived",
    multiple=True,
    metavar="KEY=EXPRESSION",
    help="A key that follows from others, as in machines.soc.compute.cycles=instruction.axes.x. "
    "May be repeated.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="RELATION",
    help="A relation that points have to satisfy, as in 'instruction.axes.x <= "
    "instruction.axes.y'. May be repeated.",
)
@click.option("--machine", metavar="NAME", help="Machine of the target.  [default: the first one]")
@click.option(
    "--technology", metavar="NAME", help="Tables of the target's area and energy.  [default: 45nm]"
)
@options.constraints_option("Constraint set of the target's embeddings.  [default: its own]")
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
@options.integer_option(
    "--trials", "Points that are evaluated, by methods that propose them.", default=40
)
@options.integer_option("--population", "Population of nsga2.  [default: 10]", smallest=2)
@click.option(
    "--objectives",
    callback=_names,
    metavar="NAMES",
    help="Objectives to minimise, as a comma list: cycles, time, energy, area, power, edp, or "
    "numbers that vary.  [default: those of the space, else cycles,energy,area; of a target "
    "time,energy,area, or time without tables]",
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
@worker_options.workers_options
@options.integer_option("--top", "Print K rows of the front.", metavar="K")
@options.integer_option(
    "--pick",
    "Number of an evaluated point: print the program of each layer on it.",
    smallest=0,
    metavar="NUMBER",
)
@options.file_option(
    "--save-target", "Write the machine of --pick, else the front's first, as a target."
)
@options.file_option("--certificate", "Write the fate of every point as JSON (exact).")
@options.file_option("--plot", "Draw the front into an SVG file.")
@options.file_option(
    "--page", "Write an HTML page of the points: parameters, and each layer's time and mapping."
)
@click.option("--fresh", is_flag=True, help="Start over instead of using stored results.")
@options.folder_option("--results", "Folder that keeps costs.  [default: the user's cache folder]")
@options.json_option
@options.pass_as(ExploreArguments)
def explore_command(arguments: ExploreArguments, **values: Any) -> int:
    """Find the machines of a space that are the best for the layers of SUITE.

    They are a front, since no machine is the best in every respect. The machines are those of a
    TARGET, whose keys vary by --vary, or those of SPACE.toml: a family of machines, or a target,
    and the values of parameters. SUITE is as for `bench`.

    Results are kept as they arrive: an interrupted exploration continues where it stopped.

    cpembed explore my.toml resnet18 --vary instruction.axes.x=8,16,32 --page front.html

    cpembed explore vta.toml resnet50 --objectives cycles,energy,area
    cpembed explore gemm.toml resnet50 --limit power=2W --pick 17 --save-target core.toml
    cpembed explore gemm.toml resnet50 --method gp --trials 40 --objectives time,power,area
    """
    from cpembed.exploration.explore import open_exploration
    from cpembed.exploration.sampled import POPULATION

    _check(arguments)
    exploration = open_exploration(
        arguments.space,
        arguments.suite,
        method=arguments.method,
        shapes=arguments.shapes or None,
        # None on the command line, so that --population with another method is noticed.
        population=arguments.population or POPULATION,
        fresh=arguments.fresh,
        **values,
    )

    def interrupted() -> str:
        location = f"results are kept in {exploration.store.path}"
        # The same command with --fresh would begin by removing them.
        fresh = " without --fresh" * arguments.fresh
        return f"interrupted: {location}; the same command{fresh} continues"

    with Stop("evaluation", interrupted) as stop:
        _run(exploration, stop)
    result = exploration.result()
    # Points that could not be evaluated are no reason to lose the others.
    for failure in result.failures:
        message(failure)
    if stop.requested:
        message(interrupted())
        if not result.front:
            return INTERRUPTED
    picked = _picked(result, arguments.pick)
    _write(result, picked, arguments)
    from cpembed.report.exploration import explore_report

    # Without --pick the first point of the front is saved, but not printed in detail.
    detail = None if arguments.pick is None else picked
    print_report(
        result, lambda: explore_report(result, arguments.top, detail), as_json=arguments.as_json
    )
    return INTERRUPTED if stop.requested else result.exit_code()


def _check(arguments: ExploreArguments) -> None:
    """Raise errors early on options with which results cannot be written."""
    from cpembed.report.plots import require_matplotlib

    method, problem = arguments.method, None
    if arguments.population is not None and method != "nsga2":
        problem = f"--population applies to nsga2, not to {method}: leave it out"
    elif arguments.certificate is not None and method != "exact":
        problem = f"--certificate applies to exact: {method} proves nothing"
    if problem is not None:
        raise click.UsageError(problem, click.get_current_context())
    if arguments.plot is not None:
        require_matplotlib()


def _run(exploration: Exploration, stop: Stop) -> None:
    with worker_options.workers_of() as workers, Bar() as bar:
        steps = exploration.run(workers)
        for step in steps:
            bar.show(step.doing, often=True, total=step.total, completed=step.completed)
            if stop.requested:
                break
        # Closing abandons the tasks that are still running, before their workers are closed.
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
    result: ExploreResult, picked: EvaluatedPoint | None, arguments: ExploreArguments
) -> None:
    """Write the files of ``--save-target``, ``--certificate``, ``--plot`` and ``--page``."""
    import json

    from cpembed.files import write_whole

    if arguments.save_target is not None:
        if picked is None:
            message("there is no front, hence no target to save")
        else:
            specification = result.space.family.specification(picked.point)
            write_whole(arguments.save_target, specification)
    if arguments.certificate is not None:
        write_whole(arguments.certificate, json.dumps(result.certificate(), indent=2) + "\n")
    if arguments.plot is not None:
        from cpembed.report.plots import front_svg

        write_whole(arguments.plot, front_svg(result))
    if arguments.page is not None:
        from cpembed.report.exploration_page import page

        write_whole(arguments.page, page(result.to_json()))


@dataclass(frozen=True, kw_only=True)
class ShapeArguments:
    """Command line of ``cpembed shape``."""

    suite: str
    macs: int
    count: int
    constraints: str | None
    powers: bool
    smallest: int
    multiples: tuple[int, int, int]
    dtypes: list[str] | None
    target: str | None
    machine: str | None
    derived: tuple[str, ...]
    packing: int | None
    layouts: bool
    buffer: int | None
    total_macs: int | None
    within: float | None
    shapes: dict[str, tuple[int, ...]]
    timeout: float | None
    save: Path | None
    as_json: bool


def _check_shape(arguments: ShapeArguments) -> None:
    """Raise errors early on options with which results cannot be written or compared."""
    from cpembed.exploration.shapes.shape import check_file

    if arguments.save is not None:
        check_file(arguments.save)
    problem = None
    if arguments.layouts and arguments.packing is None:
        problem = "--layouts needs --packing: bytes that cost as much as an execution"
    elif arguments.layouts and arguments.within is not None and arguments.count > 1:
        problem = "--within with --layouts lists single shapes: leave --shapes out"
    elif arguments.layouts and arguments.dtypes is not None:
        problem = "--layouts counts the bytes of int8 and int32: leave --dtypes out"
    elif arguments.target is None and (arguments.machine is not None or arguments.derived):
        problem = "--machine and --derive need --target: the file whose machine gives the time"
    elif arguments.target is not None and arguments.packing is not None:
        problem = "--target counts packing by its time: leave --packing out"
    elif arguments.target is not None and arguments.dtypes is not None:
        problem = "--target has element types of its own: leave --dtypes out"
    if problem is not None:
        raise click.UsageError(problem, click.get_current_context())


def _save_shapes(path: Path, result: ShapeResult) -> list[Path]:
    from cpembed.exploration.shapes.shape import save, save_texts

    question, shapes = result.question, result.shapes
    if question.cost.machine is not None:
        return save_texts(path, shapes, [question.cost.machine.text(shape) for shape in shapes])
    return save(path, shapes, question.constraints.name, question.spec)


@click.command("shape", cls=options.Subcommand)
@click.argument("suite", metavar="SUITE|MODEL", shell_complete=suites)
@options.integer_option(
    "--macs", "Maximum number of multiply-accumulates of one execution: x*y*z.", required=True
)
@options.integer_option(
    "--shapes",
    "Number of shapes to find; each layer uses its best one.",
    field="count",
    default=1,
    metavar="K",
)
@options.constraints_option("Constraint set of the embeddings.  [default: in_place_padded]")
@click.option("--powers", is_flag=True, help="Only extents that are powers of two.")
@options.integer_option("--smallest", "Minimum extent.", default=1)
@click.option(
    "--multiple",
    "multiples",
    callback=_multiples,
    default="1",
    metavar="N|x=N,y=N,z=N",
    help="Only extents that are multiples of N.",
)
@click.option(
    "--dtypes",
    callback=_names,
    metavar="A,B,C",
    help="Element types of the operands, which --buffer and --packing count.  "
    "[default: int8,int8,int32, or the target's]",
)
@click.option(
    "--target",
    metavar="NAME|FILE",
    shell_complete=targets,
    help="Compare by time on this target's machine, whose instruction has each shape in turn.",
)
@click.option("--machine", metavar="NAME", help="Machine of --target.  [default: the first one]")
@click.option(
    "--derive",
    "derived",
    multiple=True,
    metavar="KEY=EXPRESSION",
    help="A key of --target that follows from the shape, as in machines.soc.compute.cycles=x. May "
    "be repeated.",
)
@options.integer_option(
    "--packing",
    "Count packing: BYTES that it copies cost as much as an execution.  [default: not counted]",
    metavar="BYTES",
)
@click.option(
    "--layouts",
    is_flag=True,
    help="With --packing and a MODEL: tensors stay packed between layers, and only copies from one "
    "layout to another count.",
)
@options.integer_option(
    "--buffer", "Maximum size of the tiles of a shape's operands.", metavar="BYTES"
)
@options.integer_option(
    "--total-macs", "Maximum number of multiply-accumulates of all shapes together."
)
@click.option(
    "--within",
    type=click.FloatRange(min=0, max=1000),
    metavar="PERCENT",
    help="List all shapes, or sets of shapes, that cost at most PERCENT more than the best.",
)
@model_options.shapes_option
@options.timeout_option("Stop after S seconds and print the best shapes so far, with the gap.")
@options.file_option(
    "--save", "Write the shapes as targets: FILE, or FILE_<shape>.toml if several."
)
@worker_options.workers_options
@options.json_option
@options.pass_as(ShapeArguments)
def shape_command(arguments: ShapeArguments) -> int:
    """Find the shape of a matrix-product instruction that computes SUITE in the fewest executions.

    With --target, it is the shape of the least estimated time on a described machine. The
    instruction is C[x,y] += A[x,z] * B[z,y]. The best one or K of all shapes (x, y, z) with x*y*z
    of at most --macs are found and proven: each layer of the suite or model counts with its best
    embedding, times how often the network has it.

    cpembed shape resnet50 --macs 256
    cpembed shape deepbench --macs 1024 --shapes 2 --constraints complete
    cpembed shape model.onnx --macs 4096 --powers --save best.toml
    cpembed shape model.onnx --macs 256 --packing 64 --layouts
    cpembed shape resnet18 --macs 1024 --multiple 8 --target my.toml --within 5
    """
    _check_shape(arguments)
    with worker_options.workers_of() as executing:
        # After the processes have started, which load the same meanwhile.
        from cpembed.embedding.constraint_set import load_constraint_set
        from cpembed.exploration.shapes.finding import find_shapes
        from cpembed.exploration.shapes.question import DEFAULT_SET, Question
        from cpembed.exploration.shapes.shape import Cost, Model, Scope
        from cpembed.exploration.shapes.timed import open_timed

        machine, constraints = None, arguments.constraints
        if arguments.target is not None:
            machine = open_timed(
                arguments.target,
                machine=arguments.machine,
                derived=arguments.derived,
                constraints=constraints,
            )
            constraints = machine.constraints
        scope = Scope(arguments.macs, arguments.powers, arguments.smallest, arguments.multiples)
        question = Question(
            scope=scope,
            count=arguments.count,
            constraints=load_constraint_set(constraints or DEFAULT_SET),
            cost=Cost(arguments.packing, machine),
            dtypes=None if arguments.dtypes is None else tuple(arguments.dtypes),
            buffer_bytes=arguments.buffer,
            total_macs=arguments.total_macs,
            timeout=arguments.timeout,
            layouts=arguments.layouts,
            within=arguments.within,
        )
        with Bar() as bar:

            def progress(text: str, completed: int, total: int) -> None:
                bar.show(text, often=True, completed=completed, total=total)

            model = Model(arguments.suite, inputs=arguments.shapes or None)
            result = find_shapes(model, question, executing, progress)
    if arguments.save is not None and result.shapes:
        for file in _save_shapes(arguments.save, result):
            message(f"target {file}")
    code = 0
    if not result.shapes:
        code = INFEASIBLE if result.infeasible else STOPPED
        # The report below still lists what was compared.
        message(result.why_nothing)
    from cpembed.report.exploration import shape_report

    print_report(result, lambda: shape_report(result), as_json=arguments.as_json)
    return code

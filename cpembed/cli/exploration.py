"""``cpembed explore`` and ``shape``: the best machines, or instruction shapes, for a suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpembed.cli import model_options, options
from cpembed.cli.completion import suites, targets
from cpembed.cli.interrupt import INTERRUPTED, Stop
from cpembed.cli.output import INFEASIBLE, STOPPED, Bar, message, print_report
from cpembed.cli.parameters import argument, on_command_line, options_of, subcommand
from cpembed.cli.worker_options import WorkerOptions
from cpembed.driver.options import REQUIRED, option
from cpembed.exploration.options import ExploreOptions

if TYPE_CHECKING:
    from cpembed.exploration.explore import Exploration, ExploreResult
    from cpembed.exploration.objectives import EvaluatedPoint


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    """Return the names of a comma list."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _multiples(context: click.Context, option: click.Parameter, text: str) -> tuple[int, int, int]:
    """Return what the extents of x, y and z are multiples of: one number, three, or by axis."""
    numbers = {"x": 1, "y": 1, "z": 1}
    parts = text.split(",")
    if len(parts) == len(numbers) and "=" not in text:
        parts = [f"{axis}={part.strip()}" for axis, part in zip(numbers, parts, strict=True)]
    elif len(parts) > 1 and not all("=" in part for part in parts):
        problem = f"{text!r}: give one number for all axes, three for x, y and z, or names: x=1,y=8"
        raise click.BadParameter(problem, context, option)
    for part in parts:
        axis, equals, number = part.strip().rpartition("=")
        if (
            not number.isdecimal()
            or not 1 <= int(number) <= 65_536
            or (equals and axis not in numbers)
        ):
            problem = f"{text!r} is no number, such as 4, nor three, nor by axis, such as x=1,y=8"
            raise click.BadParameter(problem, context, option)
        numbers |= {axis: int(number)} if equals else dict.fromkeys(numbers, int(number))
    return numbers["x"], numbers["y"], numbers["z"]


@dataclass(frozen=True, kw_only=True)
class ExploreArguments:
    """Command line of ``cpembed explore``."""

    space: str = argument(metavar="SPACE.toml|TARGET")
    suite: str = argument(metavar="SUITE|MODEL")
    shapes: dict[str, tuple[int, ...]] = model_options.shapes_option()
    settings: ExploreOptions = options_of(
        ExploreOptions, changes={"objectives": {"callback": _names}}
    )
    processes: WorkerOptions = options_of(WorkerOptions)
    top: int | None = option(None, "Print K rows of the front.", metavar="K", limits=(1, None))
    pick: int | None = option(
        None,
        "Number of an evaluated point: print the program of each layer on it.",
        metavar="NUMBER",
        limits=(0, None),
    )
    save_target: Path | None = options.file_option(
        "Write the machine of --pick, else the front's first, as a target."
    )
    certificate: Path | None = options.file_option("Write the fate of every point as JSON (exact).")
    plot: Path | None = options.file_option("Draw the front into an SVG file.")
    page: Path | None = options.file_option(
        "Write an HTML page of the points: parameters, and each layer's time and mapping."
    )
    as_json: bool = options.json_option()


@subcommand("explore", ExploreArguments)
def explore_command(arguments: ExploreArguments) -> int:
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

    _check(arguments)
    settings = replace(arguments.settings, shapes=arguments.shapes or None)
    exploration = open_exploration(arguments.space, arguments.suite, settings)

    def interrupted() -> str:
        location = f"results are kept in {exploration.store.path}"
        # The same command with --fresh would begin by removing them.
        fresh = " without --fresh" * settings.fresh
        return f"interrupted: {location}; the same command{fresh} continues"

    with Stop("evaluation", interrupted) as stop:
        _run(exploration, arguments.processes, stop)
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

    method, problem = arguments.settings.method, None
    if "population" in dict(on_command_line()) and method != "nsga2":
        problem = f"--population applies to nsga2, not to {method}: leave it out"
    elif arguments.certificate is not None and method != "exact":
        problem = f"--certificate applies to exact: {method} proves nothing"
    if problem is not None:
        raise click.UsageError(problem, click.get_current_context())
    if arguments.plot is not None:
        require_matplotlib()


def _run(exploration: Exploration, processes: WorkerOptions, stop: Stop) -> None:
    with processes.open() as workers, Bar() as bar:
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

    suite: str = argument(metavar="SUITE|MODEL", shell_complete=suites)
    macs: int = option(
        REQUIRED,
        "Maximum number of multiply-accumulates of one execution: x*y*z.",
        metavar="N",
        limits=(1, None),
    )
    count: int = option(
        1,
        "Number of shapes to find; each layer uses its best one.",
        flag="--shapes",
        metavar="K",
        limits=(1, None),
    )
    constraints: str | None = options.constraints_option(
        "Constraint set of the embeddings.  [default: in_place_padded]"
    )
    powers: bool = option(False, "Only extents that are powers of two.")
    smallest: int = option(1, "Minimum extent.", metavar="N", limits=(1, None))
    multiples: tuple[int, int, int] = option(
        "1",
        "Only extents that are multiples of N.",
        flag="--multiple",
        metavar="N|X,Y,Z|x=N,y=N",
        callback=_multiples,
        show_default=False,
    )
    dtypes: list[str] | None = option(
        None,
        "Element types of the operands, which --buffer and --packing count.  "
        "[default: int8,int8,int32, or the target's]",
        metavar="A,B,C",
        callback=_names,
    )
    target: str | None = option(
        None,
        "Compare by time on this target's machine, whose instruction has each shape in turn.",
        metavar="NAME|FILE",
        shell_complete=targets,
    )
    machine: str | None = option(
        None, "Machine of --target.  [default: the first one]", metavar="NAME"
    )
    derived: tuple[str, ...] = option(
        (),
        "A key of --target that follows from the shape, as in machines.soc.compute.cycles=x. May "
        "be repeated.",
        flag="--derive",
        metavar="KEY=EXPRESSION",
        multiple=True,
    )
    packing: int | None = option(
        None,
        "Count packing: BYTES that it copies cost as much as an execution.  [default: not counted]",
        metavar="BYTES",
        limits=(1, None),
    )
    layouts: bool = option(
        False,
        "With --packing and a MODEL: tensors stay packed between layers, and only copies from one "
        "layout to another count.",
    )
    buffer: int | None = option(
        None,
        "Maximum size of the tiles of a shape's operands.",
        metavar="BYTES",
        limits=(1, None),
    )
    total_macs: int | None = option(
        None,
        "Maximum number of multiply-accumulates of all shapes together.",
        metavar="N",
        limits=(1, None),
    )
    within: float | None = option(
        None,
        "List all shapes, or sets of shapes, that cost at most PERCENT more than the best.",
        metavar="PERCENT",
        type=click.FloatRange(min=0, max=1000),
    )
    shapes: dict[str, tuple[int, ...]] = model_options.shapes_option()
    timeout: float | None = options.timeout_option(
        "Stop after S seconds and print the best shapes so far, with the gap."
    )
    save: Path | None = options.file_option(
        "Write the shapes as targets: FILE, or FILE_<shape>.toml if several."
    )
    processes: WorkerOptions = options_of(WorkerOptions)
    as_json: bool = options.json_option()


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


@subcommand("shape", ShapeArguments)
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
    with arguments.processes.open() as executing:
        # After the processes have started, which load the same meanwhile.
        from cpembed.embedding.constraint_set import load_constraint_set
        from cpembed.exploration.shapes.finding import find_shapes
        from cpembed.exploration.shapes.question import DEFAULT_SET, Question
        from cpembed.exploration.shapes.shape import Cost, Model, Scope, save
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

            model = Model(arguments.suite, arguments.shapes or None)
            result = find_shapes(model, question, executing, progress)
    if arguments.save is not None and result.shapes:
        texts = {shape: question.target_text(shape) for shape in result.shapes}
        for file in save(arguments.save, texts):
            message(f"target {file}")
    code = 0
    if not result.shapes:
        code = INFEASIBLE if result.infeasible else STOPPED
        # The report below still lists what was compared.
        message(result.why_nothing)
    from cpembed.report.exploration import shape_report

    print_report(result, lambda: shape_report(result), as_json=arguments.as_json)
    return code

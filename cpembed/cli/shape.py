"""``cpembed shape``: the instruction shapes that need the fewest executions for some layers."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli.cluster_options import workers_of, workers_options
from cpembed.cli.completion import suites
from cpembed.cli.match import shapes_option
from cpembed.cli.options import (
    Subcommand,
    constraints_option,
    file_option,
    json_option,
    timeout_option,
)
from cpembed.cli.outcome import INFEASIBLE, STOPPED
from cpembed.cli.output import Bar, message, print_json, print_text


@click.command(cls=Subcommand)
@click.argument("suite", metavar="SUITE|MODEL", shell_complete=suites)
@click.option(
    "--macs",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="Multiply-accumulates that one execution has at most: x*y*z.",
)
@click.option(
    "--shapes",
    "count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="K",
    help="The best K shapes, of which each layer takes its best.",
)
@constraints_option("Constraint set of the embeddings.  [default: in_place_padded]")
@click.option("--powers", is_flag=True, help="Extents that are powers of two only.")
@click.option(
    "--smallest",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="No extent is below N.",
)
@click.option(
    "--packing",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Count packing: as an execution, each time that it moves so many bytes.  [default: not "
    "counted]",
)
@click.option(
    "--layouts",
    is_flag=True,
    help="With --packing, of a MODEL: tensors stay packed between layers, and copies from one "
    "layout to another are what counts.",
)
@click.option(
    "--buffer",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="The tiles of a shape's operands take at most so many bytes.",
)
@click.option(
    "--total-macs",
    type=click.IntRange(min=1),
    metavar="N",
    help="The shapes have at most so many multiply-accumulates together.",
)
@click.option(
    "--within",
    type=click.FloatRange(min=0, max=1000),
    metavar="PERCENT",
    help="List all shapes, or sets of shapes, that cost at most PERCENT more than the best.",
)
@shapes_option
@timeout_option("Stop after S seconds with the best that was found, and the gap.")
@file_option("--save", "Write the shapes as targets: FILE, or FILE_<shape>.toml of several.")
@workers_options
@json_option
def command(
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

    The instruction is C[x,y] += A[x,z] * B[z,y]. Of all shapes (x, y, z) with x*y*z of at most
    --macs, the best one or the best K are found and proven: each layer of the suite or model takes
    its best embedding, times how often the network has it.

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
        raise click.UsageError("--layouts needs --packing: how many bytes copied are an execution")
    if layouts and within is not None and count > 1:
        raise click.UsageError("--within with --layouts lists single shapes: leave --shapes out")
    with workers_of() as executing:
        from cpembed.embedding.constraint_set import load_constraint_set
        from cpembed.exploration.shapes.cells import Cost
        from cpembed.exploration.shapes.finding import find_shapes
        from cpembed.exploration.shapes.question import DEFAULT_SET, Model, Question
        from cpembed.exploration.shapes.shape import Scope

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
        with Bar("", None) as bar:

            def report(what: str, done: int, total: int) -> None:
                bar.show(what, often=True, completed=done, total=total)

            result = find_shapes(Model(suite, inputs=shapes or None), question, executing, report)
    if save is not None and result.shapes:
        from cpembed.exploration.shapes.shape import save as save_targets

        for file in save_targets(save, result.shapes, question.constraints.name):
            message(f"target {file}")
    code = 0
    if not result.shapes:
        code = INFEASIBLE if result.infeasible else STOPPED
        message(result.why_nothing)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.shape import report as text

        print_text(*text(result))
    return code

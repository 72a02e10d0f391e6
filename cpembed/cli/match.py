"""``cpembed match``: which operators of a model a target's instruction computes."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli.options import (
    Subcommand,
    combined,
    distinct,
    json_option,
    targets_option,
    timeout_option,
)
from cpembed.cli.output import Bar, print_json, print_text

SECONDS = 10.0
"""Of each search: :data:`cpembed.network.match.TIMEOUT`, without loading the solver."""


def _shapes(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """``NAME=1,3,224,224``, of each input that is named."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, sizes = text.rpartition("=")
        try:
            numbers = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            numbers = (0,)
        if not equals or not name or any(size < 1 for size in numbers):
            problem = f"{text!r} is no shape: write NAME=1,3,224,224"
            raise click.BadParameter(problem, ctx, param)
        if name in found:
            raise click.BadParameter(f"{name} is given more than once: keep one", ctx, param)
        found[name] = numbers
    return found


shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_shapes,
    metavar="NAME=SIZES",
    help="Sizes of an input that the model leaves open, as in input=1,3,224,224. May be repeated.",
)

model_options = combined(
    click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    shapes_option,
)
"""A model file, and sizes that it leaves open."""


@click.command(cls=Subcommand)
@model_options
@targets_option
@click.option(
    "--alternatives/--no-alternatives",
    default=True,
    show_default=True,
    help="Where the instruction does not fit, or is mostly idle, try those that the target's file "
    "names as alternatives.",
)
@timeout_option("Stop each search after S seconds.", SECONDS)
@json_option
def command(
    *,
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    targets: tuple[str, ...],
    alternatives: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Match each operator of MODEL (.onnx, .pt2) with the target's instruction: which are embedded,
    how well the instruction is used, and why others are not.

    \b
    cpembed match resnet18.onnx --target avx512_vnni
    cpembed match bert.onnx --target amx_int8 --target vta_1x16x16 --shape ids=1,128
    """
    from cpembed.frontends import load_model
    from cpembed.network.match import match

    names = distinct(targets)
    graph = load_model(model, shapes or None)
    with Bar("", None) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.show(what, total=total, completed=done)

        result = match(graph, names, alternatives=alternatives, timeout=timeout, progress=progress)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.match import report

        print_text(*report(result))
    return 0

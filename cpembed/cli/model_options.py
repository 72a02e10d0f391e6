"""Options of commands that read a model: target, element types, shapes, outputs."""

from __future__ import annotations

from pathlib import Path

import click

from cpembed.cli.completion import targets
from cpembed.cli.options import combined

_UNITS = (
    "Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: all instructions of "
    "this processor, each product on the fastest."
)

units_option = click.option(
    "--target",
    default="native",
    show_default=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help=_UNITS,
)
"""Option for the units that compute a network's products."""

network_targets_option = click.option(
    "--target",
    "targets",
    default=("native",),
    show_default="native",
    multiple=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help=f"{_UNITS} May be repeated: the targets are then shown side by side.",
)
"""Option for the units of several versions of a network."""

FLOAT_TYPES = {"f32": "float32", "bf16": "bfloat16"}
"""Element types of float products by their names in ``--float``."""


def _float_type(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Return the element type of its name in ``--float``."""
    del ctx, param
    return None if name is None else FLOAT_TYPES[name]


float_option = click.option(
    "--float",
    "float_type",
    type=click.Choice(list(FLOAT_TYPES)),
    callback=_float_type,
    help="Element type of the factors of float products; sums are float32.  [default: bf16 if the "
    "named target multiplies it, else f32]",
)
"""Option for the element type of the factors of float products."""


def _shapes(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each input in ``NAME=1,3,224,224``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            numbers = tuple(int(size) for size in sizes.split(",")) if sizes else ()
        except ValueError:
            numbers = (0,)
        if not equals or not name or any(size < 1 for size in numbers):
            problem = f"{text!r} is no shape: write NAME=1,3,224,224"
            raise click.BadParameter(problem, ctx, param)
        if name in shapes:
            raise click.BadParameter(f"{name} is given more than once: keep one", ctx, param)
        shapes[name] = numbers
    return shapes


shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_shapes,
    metavar="NAME=SIZES",
    help="Sizes of an input that the model leaves open, as in input=1,3,224,224. May be repeated.",
)


def _names(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in ``NAME[,NAME]``."""
    names = tuple(name.strip() for text in texts for name in text.split(","))
    if not all(names):
        raise click.BadParameter("a name is missing: write NAME[,NAME]", ctx, param)
    return names


def _processors(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names in ``NAME[,NAME]``, each once."""
    return tuple(dict.fromkeys(_names(ctx, param, texts)))


processors_option = click.option(
    "--cpu",
    "processors",
    multiple=True,
    callback=_processors,
    metavar="NAME[,NAME]",
    help="Build for another x86 or Arm processor than this machine's, by LLVM's name (see "
    "`cpembed processors`). With several names a library holds a variant for each, and runs the "
    "best that the processor supports.  [default: this machine's]",
)
"""Option for the processors of a library."""


def _processor(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Reject several names."""
    if name is not None and "," in name:
        raise click.BadParameter("one processor at a time: give one name", ctx, param)
    return name


processor_option = click.option(
    "--cpu",
    "processor",
    callback=_processor,
    metavar="NAME",
    help="Plan for another x86 or Arm processor than this machine's, by LLVM's name (see "
    "`cpembed processors`).  [default: this machine's]",
)
"""Option for the processor of a plan."""

outputs_option = click.option(
    "--outputs",
    multiple=True,
    callback=_names,
    metavar="NAME[,NAME]",
    help="Compute these tensors of the model, intermediate ones too, instead of its outputs: "
    "operators that they do not need are left out.  [default: the model's outputs]",
)

model_argument = combined(
    click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    shapes_option,
    outputs_option,
)
"""Argument of a model file, with options for sizes that it leaves open and for its outputs."""

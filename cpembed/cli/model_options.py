"""Options of commands that read a model: target, element types, shapes, outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.completion import targets
from cpembed.cli.options import combined

if TYPE_CHECKING:
    from cpembed.network.family import Ranges

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

FLOAT_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
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
    help="Element type of the factors of float products; sums are float32.  [default: bf16 or f16 "
    "if the named target multiplies it, else f32]",
)
"""Option for the element type of the factors of float products."""

pairs_option = click.option(
    "--pairs",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Compute a convolution and what reads its rows, a pointwise convolution or pooling, in "
    "one kernel: where that is faster by the costs, wherever it is possible, or nowhere.",
)
"""Option for pairs of operators in one kernel."""

Sizes = dict[str, tuple["int | range", ...]]
"""Sizes of each input, or of an open dimension, as ``--shape`` states them."""

_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")


def parsed_shapes(texts: Iterable[str]) -> Sizes:
    """Parse sizes in the form ``NAME=1..16,3,224,224``.

    Raises :class:`click.UsageError` for another form, and for a name that comes twice.
    """
    shapes: Sizes = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        try:
            numbers = tuple(map(_size, sizes.split(","))) if sizes else ()
        except ValueError:
            numbers = (-1,)
        for ends in (n for n in numbers if isinstance(n, range)):
            _check_range(text, ends)
        # A single size may be 0, that of a tensor without elements.
        wrong = any(isinstance(n, int) and n < 0 for n in numbers)
        if not equals or not name or wrong:
            example = "NAME=1..16 or NAME=1..16,3,224,224" if ".." in sizes else "NAME=1,3,224,224"
            raise click.UsageError(f"{text!r} is no shape: write {example}")
        if name in shapes:
            raise click.UsageError(f"{name} is given more than once: keep one")
        shapes[name] = numbers
    return shapes


def _check_range(text: str, sizes: range) -> None:
    """Raise :class:`click.UsageError` for a range without sizes, or with 0 among them."""
    first, last = sizes.start, sizes.stop - 1
    if last < first:
        raise click.UsageError(
            f"{text!r}: the range {first}..{last} ends before it begins: write {last}..{first}"
        )
    if first < 1:
        remedy = f"1..{last}" if last else "0"
        raise click.UsageError(
            f"{text!r}: a range begins at 1, and tensors without elements have a library of their "
            f"own: write {remedy}"
        )


def _open_shapes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Sizes:
    """Return the sizes of each name in ``NAME=1..16,3,224,224``."""
    try:
        return parsed_shapes(texts)
    except click.UsageError as error:
        raise click.BadParameter(error.message, ctx, param) from None


def _size(text: str) -> int | range:
    """Parse a size, or a range of sizes such as ``1..16``."""
    match = _RANGE.fullmatch(text.strip())
    return int(text) if match is None else range(int(match[1]), int(match[2]) + 1)


def _shapes(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of each name in ``NAME=1,3,224,224``, without ranges."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, sizes in _open_shapes(ctx, param, texts).items():
        numbers = tuple(size for size in sizes if isinstance(size, int))
        if len(numbers) != len(sizes):
            problem = f"{name}: ranges of sizes apply to network and build: give one size here"
            raise click.BadParameter(problem, ctx, param)
        shapes[name] = numbers
    return shapes


def _constants(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """Return the value of each input in ``NAME=VALUE``; a path for one that ends in .npy."""
    constants: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        value: Any = Path(written)
        if not written.endswith(".npy"):
            # 1,2,3 is a list as well; a single number is none.
            bare = "," in written and not written.lstrip().startswith("[")
            try:
                value = json.loads(f"[{written}]" if bare else written)
            except ValueError:
                value = None
        if not equals or not name or not isinstance(value, int | float | list | Path):
            problem = f"{text!r} is no value: write NAME=16000, NAME=1,2,3 or NAME=FILE.npy"
            raise click.BadParameter(problem, ctx, param)
        if name in constants:
            raise click.BadParameter(f"{name} is given more than once: keep one", ctx, param)
        constants[name] = value
    return constants


constants_option = click.option(
    "--set",
    "constants",
    multiple=True,
    callback=_constants,
    metavar="NAME=VALUE",
    help="Bind an input to a constant, as in sr=16000, lengths=3,4, on=true or table=FILE.npy: it "
    "is no input any more, and branches that it decides disappear. May be repeated.",
)

shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_shapes,
    metavar="NAME=SIZES",
    help="Sizes of an input that the model leaves open, as in input=1,3,224,224, of one of its "
    "axes, as in input:0=1, or of an open dimension, as in batch=4. May be repeated.",
)

open_shapes_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_open_shapes,
    metavar="NAME=SIZES",
    help="Sizes of an input that the model leaves open, as in input=1,3,224,224, of one of its "
    "axes, as in input:0=1, or of an open dimension, as in batch=4; a range, as in batch=1..16 or "
    "input=1..16,3,224,224, makes one library for all of its sizes. May be repeated.",
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
    help="Build for another processor than this machine's, by LLVM's name (see "
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
    help="Plan for another processor than this machine's, by LLVM's name (see "
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

_path_argument = click.argument(
    "model", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)

model_argument = combined(_path_argument, shapes_option, constants_option, outputs_option)
"""Argument of a model file, with options for sizes that it leaves open and for its outputs."""

ranges_options = combined(
    open_shapes_option,
    constants_option,
    outputs_option,
    click.option(
        "--loss",
        type=click.FloatRange(min=1, min_open=True),
        metavar="X",
        help="With ranges of sizes: add kernels for further sizes until no run is predicted to "
        "take X times as long as with a library for its size.  [default: 1.15]",
    ),
    click.option(
        "--instances",
        type=click.IntRange(min=1),
        metavar="N",
        help="With ranges of sizes: add kernels for at most N sizes.  [default: 24]",
    ),
)
"""Options of libraries whose sizes may be ranges."""

open_model_argument = combined(_path_argument, ranges_options)
"""Argument of a model file whose sizes may be ranges."""


def require_ranges(loss: float | None, instances: int | None) -> None:
    """Raise a usage error for an option of ranges where no size is one."""
    for name, value in (("--loss", loss), ("--instances", instances)):
        if value is not None:
            raise click.UsageError(f"{name} applies to ranges of sizes: give one with --shape")


def ranges_of(loss: float | None, instances: int | None) -> Ranges:
    """Return how close a library for ranges is to be to one for each size."""
    from cpembed.network.family import Ranges

    default = Ranges()
    return Ranges(loss or default.loss, instances or default.instances)

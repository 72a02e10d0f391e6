"""Options of commands that read a model: target, element types, shapes, outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.completion import targets
from cpembed.cli.parameters import argument
from cpembed.driver.options import option

if TYPE_CHECKING:
    from cpembed.network.family import Ranges


def units_option(*, several: bool = False) -> Any:
    """Declare the option ``--target`` for the units that compute a network's products.

    Parameters
    ----------
    several : bool, default False
        True for several versions of the network.
    """
    text = (
        "Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: all "
        "instructions of this processor, each product on the fastest."
    )
    if not several:
        return option("native", text, metavar="NAME|FILE", shell_complete=targets)
    return option(
        ("native",),
        f"{text} May be repeated: the targets are then shown side by side.",
        flag="--target",
        metavar="NAME|FILE",
        multiple=True,
        show_default="native",
        shell_complete=targets,
    )


FLOAT_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
"""Element types of float products by their names in ``--float``."""


def _float_type(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Return the element type of its name in ``--float``."""
    del ctx, param
    return None if name is None else FLOAT_TYPES[name]


def float_option() -> Any:
    """Declare the option for the element type of the factors of float products."""
    return option(
        None,
        "Element type of the factors of float products; sums are float32.  [default: bf16 or f16 "
        "if the named target multiplies it, else f32]",
        flag="--float",
        choices=tuple(FLOAT_TYPES),
        callback=_float_type,
    )


def pairs_option() -> Any:
    """Declare the option for pairs of operators in one kernel."""
    return option(
        "auto",
        "Compute a convolution and what reads its rows, a pointwise convolution or pooling, in "
        "one kernel: where that is faster by the costs, wherever it is possible, or nowhere.",
        choices=("auto", "always", "never"),
    )


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


_OPEN = (
    "Sizes of an input that the model leaves open, as in input=1,3,224,224, of one of its axes, as "
    "in input:0=1, or of an open dimension, as in batch=4"
)


def shapes_option() -> Any:
    """Declare the option for sizes that a model leaves open."""
    text = f"{_OPEN}. May be repeated."
    return option((), text, flag="--shape", metavar="NAME=SIZES", multiple=True, callback=_shapes)


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


def processors_option() -> Any:
    """Declare the option for the processors of a library."""
    return option(
        (),
        "Build for another processor than this machine's, by LLVM's name (see "
        "`cpembed processors`). With several names a library holds a variant for each, and runs "
        "the best that the processor supports.  [default: this machine's]",
        flag="--cpu",
        metavar="NAME[,NAME]",
        multiple=True,
        callback=_processors,
    )


def _processor(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Reject several names."""
    if name is not None and "," in name:
        raise click.BadParameter("one processor at a time: give one name", ctx, param)
    return name


def processor_option() -> Any:
    """Declare the option for the processor of a plan."""
    return option(
        None,
        "Plan for another processor than this machine's, by LLVM's name (see "
        "`cpembed processors`).  [default: this machine's]",
        flag="--cpu",
        metavar="NAME",
        callback=_processor,
    )


def model_argument() -> Any:
    """Declare the argument of a model's file."""
    return argument(type=click.Path(exists=True, dir_okay=False, path_type=Path))


def constants_option() -> Any:
    """Declare the option for inputs that are constants."""
    return option(
        (),
        "Bind an input to a constant, as in sr=16000, lengths=3,4, on=true or table=FILE.npy: it "
        "is no input any more, and branches that it decides disappear. May be repeated.",
        flag="--set",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_constants,
    )


def outputs_option() -> Any:
    """Declare the option for the tensors that are computed."""
    return option(
        (),
        "Compute these tensors of the model, intermediate ones too, instead of its outputs: "
        "operators that they do not need are left out.  [default: the model's outputs]",
        metavar="NAME[,NAME]",
        multiple=True,
        callback=_names,
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of a model: sizes that it leaves open, constants, and its outputs."""

    shapes: dict[str, tuple[int, ...]] = shapes_option()
    constants: dict[str, Any] = constants_option()
    outputs: tuple[str, ...] = outputs_option()


@dataclass(frozen=True, kw_only=True)
class OpenModelOptions:
    """Options of a model whose sizes may be ranges."""

    shapes: Sizes = option(
        (),
        f"{_OPEN}; a range, as in batch=1..16 or input=1..16,3,224,224, makes one library for all "
        "of its sizes. May be repeated.",
        flag="--shape",
        metavar="NAME=SIZES",
        multiple=True,
        callback=_open_shapes,
    )
    constants: dict[str, Any] = constants_option()
    outputs: tuple[str, ...] = outputs_option()
    loss: float | None = option(
        None,
        "With ranges of sizes: add kernels for further sizes until no run is predicted to take X "
        "times as long as with a library for its size.  [default: 1.15]",
        metavar="X",
        limits=(1, None),
    )
    instances: int | None = option(
        None,
        "With ranges of sizes: add kernels for at most N sizes.  [default: 24]",
        metavar="N",
        limits=(1, None),
    )

    def require_ranges(self) -> None:
        """Raise a usage error for an option of ranges where no size is one."""
        for name, value in (("--loss", self.loss), ("--instances", self.instances)):
            if value is not None:
                raise click.UsageError(f"{name} applies to ranges of sizes: give one with --shape")

    @property
    def ranges(self) -> Ranges:
        """Limits on the loss of a library for ranges, and on the number of its sizes."""
        from cpembed.network.family import Ranges

        default = Ranges()
        return Ranges(self.loss or default.loss, self.instances or default.instances)

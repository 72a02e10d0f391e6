"""Arguments and options that several subcommands share, each defined once.

Names are decorators; a function returns one if texts differ between commands. The first decorator
of :func:`combined` is listed first in the help.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cpembed.cli.completion import constraint_sets, targets, workloads
from cpembed.cli.output import message
from cpembed.driver.options import LARGEST_SEED, LONGEST_TIMEOUT, Options, SearchOptions

if TYPE_CHECKING:
    from cpembed.hw.instruction import HardwareSpec
    from cpembed.ir.computation import Computation
    from cpembed.runtime.cluster import Workers
    from cpembed.runtime.cluster.connection import Tls

F = TypeVar("F", bound=Callable[..., Any])


class Subcommand(click.Command):
    """Subcommand whose examples keep their lines, and that rejects a repeated option.

    Examples are paragraphs of the help text that begin with a command. An option with a value may
    be given once: click would ignore all but the last one.
    """

    def __init__(self, *arguments: Any, help: str | None = None, **attributes: Any) -> None:
        # click does not wrap a paragraph after a backspace character.
        text = re.sub(r"\n\n( *)(?=cpembed |dask )", "\n\n\\1\b\n\\1", help or "")
        super().__init__(*arguments, help=text or None, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # The parser lists options in the order of the command line, repeated ones repeatedly.
        _, _, parsed = self.make_parser(ctx).parse_args(list(args))
        for option in self.params:
            if not isinstance(option, click.Option) or option.is_flag or option.multiple:
                continue
            if parsed.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once: keep one", ctx)
        return super().parse_args(ctx, args)


def combined(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return several arguments and options as one decorator."""

    def add(function: F) -> F:
        # click lists options in the order in which decorators stand above a function.
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def pass_as(kind: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that passes a command its parameters as one value of a dataclass.

    It stands below the options. Parameters that are no fields of the class stay keywords.
    """
    names = {field.name for field in dataclasses.fields(kind)}

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(**parameters: Any) -> int:
            fields = {name: parameters.pop(name) for name in names}
            return function(kind(**fields), **parameters)

        return command

    return decorate


def integer_option(
    name: str, text: str, *, field: str | None = None, smallest: int = 1, **attributes: Any
) -> Callable[[F], F]:
    """Return an option that takes an integer.

    Parameters
    ----------
    name
        Name on the command line.
    text
        Help text.
    field
        Name of the command's parameter, if it is not that of the option.
    smallest
        Smallest admissible number.
    **attributes
        Attributes of ``click.option``, such as ``default``, which is shown.
    """
    names = [name] if field is None else [name, field]
    attributes = {"metavar": "N", "show_default": "default" in attributes, **attributes}
    return click.option(*names, type=click.IntRange(min=smallest), help=text, **attributes)


# -- workloads, targets, models -------------------------------------------------------------------


def workload_argument(*, required: bool = True) -> Callable[[F], F]:
    """Return the argument of a workload's words."""
    metavar = "WORKLOAD..." if required else "[WORKLOAD...]"
    return click.argument(
        "words", nargs=-1, required=required, metavar=metavar, shell_complete=workloads
    )


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


def target_option(*, required: bool = True) -> Callable[[F], F]:
    """Return the option ``--target`` for one target."""
    return click.option(
        "--target",
        required=required,
        shell_complete=targets,
        metavar="NAME|FILE",
        help="Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: the best "
        "target of this processor.",
    )


targets_option = click.option(
    "--target",
    "targets",
    required=True,
    multiple=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: the best "
    "target of this processor. May be repeated: the targets are then shown side by side.",
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
        # A single size may be 0, that of a tensor without elements.
        wrong = any((n.stop <= n.start or n.start < 1) if isinstance(n, range) else n < 0
                    for n in numbers)  # fmt: skip
        if not equals or not name or wrong:
            raise click.UsageError(f"{text!r} is no shape: write NAME=1,3,224,224")
        if name in shapes:
            raise click.UsageError(f"{name} is given more than once: keep one")
        shapes[name] = numbers
    return shapes


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


# -- searching ------------------------------------------------------------------------------------


def _weights(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """Return the two numbers of ``MAC,DATA``, which are not negative."""
    if value is None:
        return None
    try:
        mac, data = (float(part) for part in value.split(","))
    except ValueError:
        problem = f"{value!r} is not two numbers; write MAC,DATA such as 1,0.5"
        raise click.BadParameter(problem, ctx, param) from None
    if not (0 <= mac < float("inf") and 0 <= data < float("inf")):
        raise click.BadParameter(f"{value!r}: a weight is a number of at least 0", ctx, param)
    return mac, data


def _seconds(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    # click's range accepts NaN, for which every comparison is false.
    if value is not None and not value <= LONGEST_TIMEOUT:
        raise click.BadParameter(f"{value:g} is not a number of seconds up to {LONGEST_TIMEOUT:g}")
    return value


def timeout_option(text: str, default: float | None = None) -> Callable[[F], F]:
    """Return the option ``--timeout`` of a command that has no options dataclass."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        callback=_seconds,
        default=default,
        metavar="S",
        show_default=default is not None,
        help=text,
    )


def seed_option(text: str) -> Callable[[F], F]:
    """Return the option ``--seed`` of a command that has no options dataclass."""
    return click.option(
        "--seed",
        type=click.IntRange(0, LARGEST_SEED),
        default=0,
        metavar="N",
        show_default=True,
        help=text,
    )


def constraints_option(text: str) -> Callable[[F], F]:
    """Return the option ``--constraints`` of a command that has no options dataclass."""
    return click.option(
        "--constraints", shell_complete=constraint_sets, metavar="NAME|FILE", help=text
    )


def library_options(
    kind: type[SearchOptions],
    *,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Return a decorator that adds the options of a dataclass to a command.

    Parameters
    ----------
    kind
        Class of the options; its fields hold names, types, limits and help texts.
    leave_out
        Fields that the command has no option for.
    defaults, texts
        Defaults and help texts that differ on the command line, by field.
    """
    decorators = [
        _click_option(field, (defaults or {}).get(field.name, field.default), texts or {})
        for field in dataclasses.fields(kind)
        if not field.metadata["hidden"] and field.name not in leave_out
    ]
    return combined(*decorators)


def _click_option(
    field: dataclasses.Field[Any], default: Any, texts: Mapping[str, str]
) -> Callable[[Any], Any]:
    about = field.metadata
    flag = about["flag"] or f"--{field.name.replace('_', '-')}"
    text = texts.get(field.name, about["text"])
    # The module of the options has postponed annotations, so that types are texts.
    if field.type == "bool":
        return click.option(flag, field.name, is_flag=True, help=text)
    shows_default = default is not None and "[default" not in text
    return click.option(
        flag,
        field.name,
        type=_click_type(field),
        callback=_CALLBACKS.get(field.name),
        shell_complete=constraint_sets if field.name == "constraints" else None,
        default=default,
        show_default=shows_default,
        metavar=about["metavar"],
        help=text,
    )


def _click_type(field: dataclasses.Field[Any]) -> Any:
    choices, metavar = field.metadata["choices"], field.metadata["metavar"]
    smallest, largest = field.metadata["limits"] or (None, None)
    types = str(field.type).split(" | ")
    if choices is not None:
        return click.Choice(choices)
    if "Path" in types:
        # PROGRAM is a folder or an archive.
        folder, file = metavar in ("DIR", "PROGRAM"), metavar in ("FILE", "PROGRAM")
        return click.Path(dir_okay=folder, file_okay=file, path_type=Path)
    if "float" in types:
        return click.FloatRange(min=smallest, min_open=True)
    if "int" in types:
        return click.IntRange(smallest, largest)
    return None


_CALLBACKS: Mapping[str, Callable[..., Any]] = {"weights": _weights, "timeout": _seconds}
"""Functions that check the value of an option, by field."""


def options_from(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Return the options dataclass of a command from its parameters; others are ignored."""
    from cpembed.embedding.constraint_set import Weights

    names = {field.name for field in dataclasses.fields(kind)}
    fields = {name: value for name, value in values.items() if name in names}
    # The command line has no type for them: the callback made a pair of numbers.
    if fields.get("weights") is not None:
        fields["weights"] = Weights(*fields["weights"])
    return kind(**fields)


verbose_option = click.option(
    "--verbose", is_flag=True, help="Print the solver's status, times and effort."
)

# -- running --------------------------------------------------------------------------------------


def threads_option(subject: str = "the kernel") -> Callable[[F], F]:
    """Return the option ``--threads``; ``subject`` is what runs on them."""
    text = f"Threads of {subject}.  [default: the cores of the process]"
    return integer_option("--threads", text)


def use_threads(threads: int | None) -> None:
    """Set the number of threads of kernels."""
    # The compiler's run-time library reads it when it is loaded, so commands call this first.
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


# -- workers --------------------------------------------------------------------------------------
#
# Their values go to the context instead of the command's parameters: a command only opens workers.


def _store_worker_setting(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[f"cpembed.workers.{parameter.name}"] = value


def _worker_setting(name: str) -> Any:
    return click.get_current_context().meta.get(f"cpembed.workers.{name}")


def _worker_option(name: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(name, callback=_store_worker_setting, expose_value=False, **attributes)


tls_options: Callable[[Any], Any] = combined(
    _worker_option(
        "--tls-ca-file",
        metavar="FILE",
        help="TLS: the authority that signed the certificates of the cluster's members, in PEM "
        "form. Missing values are taken from Dask's configuration.",
    ),
    _worker_option("--tls-cert", metavar="FILE", help="TLS: the certificate of this process."),
    _worker_option(
        "--tls-key",
        metavar="FILE",
        help="TLS: its private key, if the certificate's file does not contain it.",
    ),
)
"""Options of the certificates for the connection to a scheduler."""

workers_options: Callable[[Any], Any] = combined(
    _worker_option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Work in N processes of this machine. Timing tasks are rejected: concurrent "
        "processes would distort them.",
    ),
    _worker_option(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="Work on a Dask cluster: its scheduler's address, or a file that contains it; see "
        "`cpembed worker`.",
    ),
    tls_options,
)
"""Options of the processes or machines that do the work."""


def workers_of(*, measures: bool = False, compiles: bool = True) -> Workers:
    """Open the workers of :data:`workers_options`, a context manager.

    ``measures`` and ``compiles`` are those of :func:`~cpembed.runtime.cluster.open_workers`.
    """
    workers, cluster, tls = _worker_setting("workers"), _worker_setting("cluster"), certificates()
    require_one(workers=workers is not None, cluster=cluster is not None)
    from cpembed.runtime.cluster import open_workers
    from cpembed.runtime.cluster.connection import exposed, scheduler_address

    if cluster is not None:
        warning = exposed(scheduler_address(cluster, "tls" if tls.is_given else "tcp"))
        if warning is not None:
            message(warning)
    return open_workers(workers, cluster, measures=measures, compiles=compiles, tls=tls)


def certificates() -> Tls:
    """Return the values of :data:`tls_options`."""
    from cpembed.runtime.cluster.connection import Tls

    return Tls(
        _worker_setting("tls_ca_file"), _worker_setting("tls_cert"), _worker_setting("tls_key")
    )


# -- output ---------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def file_option(name: str, text: str) -> Callable[[F], F]:
    """Return an option that names a file to write; an existing one is replaced."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar="FILE", help=text)


def folder_option(name: str, text: str) -> Callable[[F], F]:
    """Return an option that names a folder in which results are kept."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar="DIR", help=text)


# -- values ---------------------------------------------------------------------------------------


def distinct(targets: Sequence[str], *, as_units: bool = False) -> list[str]:
    """Return the targets in their order; raise a usage error for a repeated one.

    ``native`` stands for one target, or ``as_units`` for all units of this processor.
    """
    from cpembed.driver.named import NATIVE, hardware_specs

    for number, target in enumerate(targets):
        if target in targets[:number]:
            repeated = f"target {target} is given more than once: keep one"
            raise click.UsageError(repeated, click.get_current_context())
    # Resolved once, so that a wrong name is reported before any work.
    hardware_specs([target for target in targets if not as_units or target != NATIVE])
    return list(targets)


def require_one(**present: bool) -> None:
    """Reject more than one of several options, by whether each is present."""
    names = [f"--{name}" for name, is_present in present.items() if is_present]
    if len(names) > 1:
        excluded = f"of {', '.join(names[:-1])} and {names[-1]} only one can be given"
        raise click.UsageError(excluded, click.get_current_context())


@dataclasses.dataclass(frozen=True)
class Subject:
    """A workload on a target's element types, with the options of the command."""

    workload: Computation
    target: HardwareSpec
    options: Any


def subject(words: Sequence[str], target: str, options: SearchOptions) -> Subject:
    """Resolve the workload, the target and the constraint set that a command names.

    Parameters
    ----------
    words
        Words of the workload.
    target
        Name or file of the target.
    options
        Options of the command; a constraint set is loaded into them.
    """
    from cpembed.driver.named import hardware_spec, is_typed, types_for_window, workload
    from cpembed.driver.solve import constraint_set

    spec = hardware_spec(target, words)
    computation = workload(words, spec)
    # The set decides default element types too, so it is loaded before the search.
    if options.constraints is not None:
        constraints = constraint_set(options.constraints)
        options = dataclasses.replace(options, constraints=constraints)
        if not is_typed(words):
            computation = types_for_window(computation, constraints)
    return Subject(computation, spec, options)

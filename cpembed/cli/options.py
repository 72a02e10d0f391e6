"""Arguments and options that several subcommands share, each defined once.

Names are decorators; a function returns one if texts differ between commands. The first decorator
of :func:`combined` is listed first in the help.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from cpembed.cli.completion import constraint_sets, targets, workloads
from cpembed.driver.options import LARGEST_SEED, LONGEST_TIMEOUT, Options, SearchOptions

if TYPE_CHECKING:
    from cpembed.hw.instruction import HardwareSpec
    from cpembed.ir.computation import Computation

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


# -- workloads, targets ---------------------------------------------------------------------------


def workload_argument(*, required: bool = True) -> Callable[[F], F]:
    """Return the argument of a workload's words."""
    metavar = "WORKLOAD..." if required else "[WORKLOAD...]"
    return click.argument(
        "words", nargs=-1, required=required, metavar=metavar, shell_complete=workloads
    )


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
    multiple=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: the best "
    "target of this processor. May be repeated: the targets are then shown side by side.",
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
    """Return the option ``--threads``; ``subject`` names the work that runs on them."""
    text = f"Threads of {subject}.  [default: the cores of the process]"
    return integer_option("--threads", text)


def use_threads(threads: int | None) -> None:
    """Set the number of threads of kernels."""
    # The compiler's run-time library reads it when it is loaded, so commands call this first.
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


def require_threads_apply(
    threads: int | None, target: str | HardwareSpec, backend: str = "auto"
) -> None:
    """Raise :class:`click.UsageError` for threads that kernels of a target do not have.

    Parameters
    ----------
    threads : int or None
        Value of ``--threads``.
    target : str or HardwareSpec
    backend : str, default "auto"
        Portable code has threads on every target.
    """
    if threads is None or backend == "generic":
        return
    from cpembed.driver.named import hardware_spec
    from cpembed.provenance import Provenance
    from cpembed.targets.capabilities import Linkable
    from cpembed.targets.registry import open_target

    opened = open_target(hardware_spec(target))
    if opened.provenance is Provenance.EMULATED and not isinstance(opened, Linkable):
        raise click.UsageError(
            f"--threads is of kernels of processors, and those of {opened.spec.name} are emulated: "
            "leave it out"
        )


# -- output ---------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def fuse_option() -> Callable[[F], F]:
    """Return the options that say whether a chain of products is one kernel: True, False, None."""

    def decorated(function: F) -> F:
        apart_option = click.option(
            "--apart",
            is_flag=True,
            expose_value=False,
            callback=_exclude_fuse,
            help="Of a chain of products, make a kernel for each.",
        )
        fuse_flag = click.option(
            "--fuse",
            is_flag=True,
            flag_value=True,
            default=None,
            # Before `--apart`, whose callback compares both.
            is_eager=True,
            help="Of a chain of products, make one kernel.  [default: what is estimated to be "
            "faster, this or --apart]",
        )
        return fuse_flag(apart_option(function))

    return decorated


def _exclude_fuse(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        if ctx.params.get("fuse"):
            raise click.UsageError("--fuse and --apart exclude each other: give one of them", ctx)
        ctx.params["fuse"] = False


def require_no_fusion(fuse: bool | None) -> None:
    """Raise :class:`click.UsageError` if the option is given for a single product."""
    if fuse is not None:
        raise click.UsageError("--fuse and --apart apply to chains of products: leave them out")


def file_option(name: str, text: str) -> Callable[[F], F]:
    """Return an option that names a file to write; an existing one is replaced."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar="FILE", help=text, callback=_in_a_folder)


def _in_a_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Reject a file whose folder does not exist before any work, which may take minutes."""
    if value is not None and not value.parent.is_dir():
        problem = f"folder {value.parent} of {value.name} does not exist: make it"
        raise click.BadParameter(problem, ctx, param)
    return value


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


def refuse_others(subject: str, *used: str) -> None:
    """Reject options of the command line that mean nothing for a subject.

    Parameters
    ----------
    subject : str
        What the command is called for, in the message.
    *used : str
        Names of the command's parameters that have a meaning, besides the target and ``--json``.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if not isinstance(parameter, click.Option) or name in {"target", "as_json", *used}:
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            problem = f"{parameter.opts[0]} means nothing for {subject}: leave it out"
            raise click.UsageError(problem, context)

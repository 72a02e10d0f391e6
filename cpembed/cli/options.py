"""Arguments and options that several subcommands share, each defined once.

A name is a decorator; where the words differ between commands, a function makes one. Of several
put together, :func:`combined`, the first is listed first in the help.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cpembed.cli.completion import constraint_sets, targets, workloads
from cpembed.driver.options import LARGEST_SEED, LONGEST_TIMEOUT, Options, SearchOptions

if TYPE_CHECKING:
    from cpembed.hw.instruction import HardwareSpec
    from cpembed.ir.computation import Computation

F = TypeVar("F", bound=Callable[..., Any])


class Subcommand(click.Command):
    """A subcommand whose options with a value are given once: of two, neither is silently lost."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for option in self.params:
            if not isinstance(option, click.Option) or option.is_flag or option.multiple:
                continue
            if given.count(option) > 1:
                raise click.UsageError(f"{option.opts[0]} is given more than once: keep one", ctx)
        return super().parse_args(ctx, args)


def combined(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several arguments and options as one decorator."""

    def add(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


# -- what to run on what --------------------------------------------------------------------------


def workload_argument(*, required: bool = True) -> Callable[[F], F]:
    """The words of a workload."""
    metavar = "WORKLOAD..." if required else "[WORKLOAD...]"
    return click.argument(
        "words", nargs=-1, required=required, metavar=metavar, shell_complete=workloads
    )


def target_option(*, required: bool = True) -> Callable[[F], F]:
    return click.option(
        "--target",
        required=required,
        shell_complete=targets,
        metavar="NAME|FILE",
        help="Target: a shipped name (see `cpembed targets`) or a TOML file.",
    )


targets_option = click.option(
    "--target",
    "targets",
    required=True,
    multiple=True,
    shell_complete=targets,
    metavar="NAME|FILE",
    help="Target: a shipped name (see `cpembed targets`) or a TOML file. May be repeated: the "
    "targets are then shown beside each other.",
)


# -- how to search --------------------------------------------------------------------------------


def _weights(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, float] | None:
    """``MAC,DATA``: two numbers that are not negative."""
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
    # A range admits what is not a number.
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
    kind : type
        Class of the options; its fields say names, types, limits and help texts.
    leave_out : sequence of str
        Fields that the command has no option for.
    defaults, texts : mapping of str to value, optional
        Defaults and help texts that differ on the command line.
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
    """Return the options dataclass of a command from the values that click parsed.

    Parameters
    ----------
    kind : type
        Class of the options.
    values : mapping of str to Any
        Parameters of the command; those that are no fields of the class are ignored.
    """
    from cpembed.embedding.constraint_set import Weights

    names = {field.name for field in dataclasses.fields(kind)}
    fields = {name: value for name, value in values.items() if name in names}
    if fields.get("weights") is not None:
        fields["weights"] = Weights(*fields["weights"])
    return kind(**fields)


verbose_option = click.option(
    "--verbose", is_flag=True, help="Print the solver's status, times and effort."
)

# -- how to run -----------------------------------------------------------------------------------


def threads_option(subject: str = "the kernel") -> Callable[[F], F]:
    return click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Threads of {subject}.  [default: the cores of the process]",
    )


def use_threads(threads: int | None) -> None:
    """Make kernels run on so many threads; read when the compiler's run-time library is loaded."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


# -- what is printed and written ------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def file_option(name: str, words: str) -> Callable[[F], F]:
    """An option that names a file to write; one that is there is replaced."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar="FILE", help=words)


def folder_option(name: str, words: str) -> Callable[[F], F]:
    """An option that names a folder in which results are kept."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(name, type=kind, metavar="DIR", help=words)


# -- what was given -------------------------------------------------------------------------------


def distinct(targets: Sequence[str]) -> list[str]:
    """Targets in the order given; a usage error where one is given twice."""
    from cpembed.driver.named import hardware_specs

    for number, target in enumerate(targets):
        if target in targets[:number]:
            twice = f"target {target} is given more than once: keep one"
            raise click.UsageError(twice, click.get_current_context())
    hardware_specs(targets)
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
    words : sequence of str
        Words of the workload.
    target : str
        Name or file of the target.
    options : SearchOptions
        Options of the command; a constraint set is loaded into them.
    """
    from cpembed.driver.named import hardware_spec, is_typed, types_for_window, workload
    from cpembed.driver.solve import constraint_set

    spec = hardware_spec(target)
    computation = workload(words, spec)
    if options.constraints is not None:
        constraints = constraint_set(options.constraints)
        options = dataclasses.replace(options, constraints=constraints)
        if not is_typed(words):
            computation = types_for_window(computation, constraints)
    return Subject(computation, spec, options)

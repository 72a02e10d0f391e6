"""Commands whose arguments and options are the fields of a dataclass, each declared once.

A field is an :func:`argument`, an :func:`~cpembed.driver.options.option`, or a dataclass with the
options of a function of the library. The help lists them in the order of the fields.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cpembed.cli.completion import constraint_sets
from cpembed.driver.options import LONGEST_TIMEOUT, REQUIRED

Arguments = TypeVar("Arguments")
Decorator = Callable[[Any], Any]


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


def subcommand(
    name: str, kind: type[Arguments], group: click.Group | None = None, **attributes: Any
) -> Callable[[Callable[[Arguments], int]], click.Command]:
    """Return a decorator that makes a command of a function of its arguments.

    Parameters
    ----------
    name : str
        Name of the command.
    kind : type
        Dataclass of the arguments and options, whose fields declare them.
    group : click.Group, optional
        Group that the command is added to.
    **attributes : Any
        Further attributes of the command, by click's names.
    """
    part = _Part(kind)

    def decorate(function: Callable[[Arguments], int]) -> click.Command:
        @functools.wraps(function)
        def call(**parameters: Any) -> int:
            return function(part.value(parameters))

        # click lists parameters in the order in which decorators stand above a function.
        for decorator in reversed(list(part.parameters())):
            call = decorator(call)
        make = click.command if group is None else group.command
        return make(name, cls=Subcommand, **attributes)(call)

    return decorate


def argument(**attributes: Any) -> Any:
    """Return a dataclass field that is an argument; ``attributes`` are those of click."""
    return dataclasses.field(metadata={"argument": attributes})


@dataclasses.dataclass(frozen=True)
class _Part:
    """Dataclass whose options are those of a command, all but some."""

    kind: type[Any]
    leave_out: Sequence[str] = ()
    changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, Any]]
    )

    def parameters(self) -> Iterator[Decorator]:
        """Yield the decorators of click for the arguments and options, in their order."""
        for field in self._fields():
            if "argument" in field.metadata:
                yield click.argument(field.name, **field.metadata["argument"])
            elif "part" in field.metadata:
                yield from field.metadata["part"].parameters()
            else:
                yield _click_option(field, self.changes.get(field.name, {}))

    def value(self, parameters: Mapping[str, Any]) -> Any:
        """Return the object with the values of a command's parameters."""
        values: dict[str, Any] = {}
        for field in self._fields():
            part: _Part | None = field.metadata.get("part")
            values[field.name] = parameters[field.name] if part is None else part.value(parameters)
        # The command line has no type for them: the callback made a pair of numbers.
        if values.get("weights") is not None:
            from cpembed.embedding.constraint_set import Weights

            values["weights"] = Weights(*values["weights"])
        return self.kind(**values)

    def _fields(self) -> list[dataclasses.Field[Any]]:
        return [
            field
            for field in dataclasses.fields(self.kind)
            if not field.metadata.get("hidden") and field.name not in self.leave_out
        ]


def options_of(
    kind: type[Any],
    *,
    leave_out: Sequence[str] = (),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Return a dataclass field whose value is an object with options of its own.

    Parameters
    ----------
    kind : type
        Class of the options; its fields hold names, types, limits and help texts.
    leave_out : sequence of str
        Fields that the command has no option for; they have their defaults.
    changes : mapping of str to mapping, optional
        Attributes of click that differ on this command line, by field: ``default``, ``help``.
    """
    return dataclasses.field(metadata={"part": _Part(kind, leave_out, changes or {})})


def _click_option(field: dataclasses.Field[Any], changes: Mapping[str, Any]) -> Decorator:
    about = field.metadata
    flags = (about["flag"] or f"--{field.name.replace('_', '-')}").split()
    attributes: dict[str, Any] = {"help": about["text"], "metavar": about["metavar"]}
    # The modules of the options have postponed annotations, so that types are texts.
    if field.type == "bool":
        attributes["is_flag"] = True
        if "/" in flags[0]:
            attributes |= {"default": field.default, "show_default": True}
    else:
        attributes |= {"type": _click_type(field), "callback": _CALLBACKS.get(field.name)}
        if field.name == "constraints":
            attributes["shell_complete"] = constraint_sets
        if field.default is REQUIRED:
            attributes["required"] = True
        else:
            attributes["default"] = field.default
    attributes |= {**about["attributes"], **changes}
    if "show_default" not in attributes and not attributes.get("is_flag"):
        has_default = attributes.get("default") not in (None, ())
        attributes["show_default"] = has_default and "[default" not in attributes["help"]
    return click.option(*flags, field.name, **attributes)


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


_CALLBACKS: Mapping[str, Callable[..., Any]] = {"weights": _weights, "timeout": _seconds}
"""Functions that check the value of an option, by field."""


def on_command_line() -> Iterator[tuple[str, str]]:
    """Yield the parameter and the flag of each option that the command line has."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        # Defaults say nothing: only options that were written may be wrong.
        is_written = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(parameter, click.Option) and is_written:
            yield name, parameter.opts[0]

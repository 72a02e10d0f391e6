"""Arguments and options that several subcommands share, each defined once.

A name is a decorator; where the words differ between commands, a function makes one. Of several
put together, :func:`together`, the first is listed first in the help.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from cpembed.cli.completion import constraint_sets, targets, workloads

if TYPE_CHECKING:
    from cpembed.embedding.constraint_set import ConstraintSet, Weights
    from cpembed.hw.instruction import HardwareSpec
    from cpembed.ir.computation import Computation

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_TIMEOUT = 1e8
"""Seconds: three years. Systems wait for no more than a few hundred."""

LARGEST_SEED = 2**31 - 1
"""The solver's seeds are 32-bit."""


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


def together(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
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


def constraints_option(words: str) -> Callable[[F], F]:
    return click.option(
        "--constraints", shell_complete=constraint_sets, metavar="NAME|FILE", help=words
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


def _number(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None and not value <= _LONGEST_TIMEOUT:
        raise click.BadParameter(f"{value:g} is not a number of seconds up to {_LONGEST_TIMEOUT:g}")
    return value


def timeout_option(words: str, default: float | None = None) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        callback=_number,
        default=default,
        metavar="S",
        show_default=default is not None,
        help=words,
    )


def seed_option(words: str, default: int | None = 0) -> Callable[[F], F]:
    return click.option(
        "--seed",
        type=click.IntRange(0, LARGEST_SEED),
        default=default,
        metavar="N",
        show_default=default is not None,
        help=words,
    )


def rank_option(words: str) -> Callable[[F], F]:
    return click.option("--rank", type=click.IntRange(min=1), metavar="K", help=words)


id_option = click.option(
    "--id",
    "identifier",
    metavar="ID",
    help="The candidate with this id, or the only one that begins so, wherever it was printed: "
    "by solve, run, explain, tune or bench.",
)


class Asked(TypedDict):
    """The parameters of :data:`embedding_options`."""

    words: tuple[str, ...]
    target: str
    constraints: str | None
    weights: tuple[float, float] | None
    timeout: float | None
    verbose: bool


class Problem(TypedDict):
    """What is to be searched, as functions of the library take it."""

    workload: Computation
    target: HardwareSpec
    constraints: ConstraintSet | None
    weights: Weights | None
    timeout: float | None


embedding_options = together(
    workload_argument(),
    target_option(),
    constraints_option(
        "Constraint set: a shipped name or a TOML file. Default: in_place_padded, and "
        "fused too where that uses the instruction badly."
    ),
    click.option(
        "--weights",
        callback=_weights,
        metavar="MAC,DATA",
        help="Weights of the MAC and the data overhead in the score.",
    ),
    timeout_option("Stop searching after S seconds and use what was found."),
    click.option("--verbose", is_flag=True, help="Print the solver's status, times and effort."),
)
"""A workload, a target, and how to search: the parameters of :class:`Asked`."""

# -- how to run -----------------------------------------------------------------------------------


def threads_option(of: str = "the kernel") -> Callable[[F], F]:
    return click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Threads of {of}.  [default: the cores of the process]",
    )


def use_threads(threads: int | None) -> None:
    """Make kernels run on so many threads; read when the compiler's run-time library is loaded."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)


def backend_option(auto: str) -> Callable[[F], F]:
    """The choice of the code that runs; ``auto`` says what is taken where nobody asks."""
    return click.option(
        "--backend",
        type=click.Choice(["auto", "native", "generic"]),
        default="auto",
        show_default=True,
        help="native: the target's instruction, executed or simulated; generic: portable code; "
        f"auto: {auto}",
    )


def method_option(default: str) -> Callable[[F], F]:
    """The choice of the method for convolutions."""
    return click.option(
        "--method",
        type=click.Choice(["auto", "implicit", "explicit", "winograd_2x2", "winograd_4x4"]),
        default=default,
        show_default=True,
        help="How a convolution is computed.  implicit: its windows are walked by the kernel; "
        "explicit: im2col, then a product of matrices; winograd: transforms of tiles of so many "
        "outputs around a product; auto: the fastest by estimate of floats, implicit of integers.",
    )


def output_option(forms: Sequence[str], words: str) -> Callable[[F], F]:
    """The choice of what is stored of the sums."""
    return click.option("--output", type=click.Choice(forms), help=words)


steps_options = together(
    click.option(
        "--bias",
        is_flag=True,
        help="Adds a vector, an element a channel: random, or given with a library's weights (not "
        "on a simulated target).",
    ),
    click.option(
        "--scale",
        is_flag=True,
        help="Multiplies by a float32 vector likewise, as requantization does (not on a simulated "
        "target).",
    ),
    click.option(
        "--relu", is_flag=True, help="Negative results are stored as 0 (not on a simulated target)."
    ),
)
"""What happens to the sums before they are stored."""

untuned_option = click.option(
    "--untuned", is_flag=True, help="Do not use what `cpembed tune` has found."
)

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


def require_one(**given: bool) -> None:
    """Refuse options, of which is told whether each is given, that exclude each other."""
    names = [f"--{name}" for name, there in given.items() if there]
    if len(names) > 1:
        excluded = f"of {', '.join(names[:-1])} and {names[-1]} only one can be given"
        raise click.UsageError(excluded, click.get_current_context())


def problem(asked: Asked) -> Problem:
    """The workload on the target's element types, the target, the set if one is asked for, the
    weights."""
    from cpembed.driver.named import hardware_spec, is_typed, types_for_window, workload
    from cpembed.embedding.constraint_set import Weights, load_constraint_set

    spec = hardware_spec(asked["target"])
    weights = None if asked["weights"] is None else Weights(*asked["weights"])
    chosen, named = None, workload(asked["words"], spec)
    if asked["constraints"] is not None:
        chosen = load_constraint_set(asked["constraints"])
        named = named if is_typed(asked["words"]) else types_for_window(named, chosen)
    return Problem(
        workload=named, target=spec, constraints=chosen, weights=weights, timeout=asked["timeout"]
    )

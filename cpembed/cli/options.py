"""Arguments and options that several subcommands share, each declared once.

Functions return fields of the dataclasses of :func:`~cpembed.cli.parameters.subcommand`; texts that
differ between commands are their parameters.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cpembed.cli.completion import targets, workloads
from cpembed.cli.parameters import argument, on_command_line
from cpembed.driver.options import LARGEST_SEED, LONGEST_TIMEOUT, REQUIRED, SearchOptions, option

if TYPE_CHECKING:
    from cpembed.hw.instruction import HardwareSpec
    from cpembed.ir.computation import Computation

# -- workloads, targets ---------------------------------------------------------------------------


def workload_words(*, required: bool = True) -> Any:
    """Declare the argument of a workload's words."""
    metavar = "WORKLOAD..." if required else "[WORKLOAD...]"
    return argument(nargs=-1, required=required, metavar=metavar, shell_complete=workloads)


_TARGET = (
    "Target: a shipped name (see `cpembed targets`), a TOML file, or `native`: the best target of "
    "this processor."
)


def target_option(*, required: bool = True) -> Any:
    """Declare the option ``--target`` for one target."""
    default = REQUIRED if required else None
    return option(default, _TARGET, metavar="NAME|FILE", shell_complete=targets)


def targets_option() -> Any:
    """Declare the option ``--target`` for several targets."""
    text = f"{_TARGET} May be repeated: the targets are then shown side by side."
    return option(
        (), text, flag="--target", metavar="NAME|FILE", multiple=True, shell_complete=targets
    )


# -- searching ------------------------------------------------------------------------------------


def timeout_option(text: str, default: float | None = None) -> Any:
    """Declare the option ``--timeout`` of a command that has no options of the library."""
    return option(default, text, metavar="S", limits=(0, LONGEST_TIMEOUT))


def seed_option(text: str) -> Any:
    """Declare the option ``--seed`` of a command that has no options of the library."""
    return option(0, text, metavar="N", limits=(0, LARGEST_SEED))


def constraints_option(text: str) -> Any:
    """Declare the option ``--constraints`` of a command that has no options of the library."""
    return option(None, text, metavar="NAME|FILE")


def verbose_option() -> Any:
    """Declare the option ``--verbose`` of a command that searches."""
    return option(False, "Print the solver's status, times and effort.")


# -- running --------------------------------------------------------------------------------------


def threads_option(subject: str = "the kernel") -> Any:
    """Declare the option ``--threads``; ``subject`` names the work that runs on them."""
    text = f"Threads of {subject}.  [default: the cores of the process]"
    return option(None, text, metavar="N", limits=(1, None))


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


def json_option() -> Any:
    """Declare the option ``--json``."""
    return option(False, "Print one JSON document.", flag="--json")


@dataclass(frozen=True, kw_only=True)
class FusionOptions:
    """Options that say whether a chain of products is one kernel."""

    fuse: bool = option(
        False,
        "Of a chain of products, make one kernel.  [default: what is estimated to be faster, this "
        "or --apart]",
    )
    separate: bool = option(
        False, "Of a chain of products, make a kernel for each.", flag="--apart"
    )

    def __post_init__(self) -> None:
        if self.fuse and self.separate:
            raise click.UsageError(
                "--fuse and --apart exclude each other: give one of them",
                click.get_current_context(),
            )

    @property
    def fused(self) -> bool | None:
        """True for one kernel, False for several, None for what is estimated to be faster."""
        return self.fuse or (False if self.separate else None)

    def require_none(self) -> None:
        """Raise :class:`click.UsageError` if an option is given, for a single product."""
        if self.fused is not None:
            raise click.UsageError("--fuse and --apart apply to chains of products: leave them out")


def file_option(text: str) -> Any:
    """Declare an option that names a file to write; an existing one is replaced."""
    return option(None, text, metavar="FILE", callback=_in_a_folder)


def _in_a_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Reject a file whose folder does not exist before any work, which may take minutes."""
    if value is not None and not value.parent.is_dir():
        problem = f"folder {value.parent} of {value.name} does not exist: make it"
        raise click.BadParameter(problem, ctx, param)
    return value


def folder_option(text: str) -> Any:
    """Declare an option that names a folder in which results are kept."""
    return option(None, text, metavar="DIR")


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


@dataclass(frozen=True)
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
    for name, flag in on_command_line():
        if name not in {"target", "as_json", *used}:
            problem = f"{flag} means nothing for {subject}: leave it out"
            raise click.UsageError(problem, click.get_current_context())

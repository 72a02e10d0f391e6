"""``cpembed run`` and ``build`` of gradients of strided convolutions by images, in all phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpembed.cli import options, output
from cpembed.driver.options import RunOptions


def run_gradient_command(
    words: Sequence[str], target: str, values: Mapping[str, Any], *, as_json: bool
) -> int:
    """Build, verify and print the kernels of a gradient; return the exit code.

    Parameters
    ----------
    words : sequence of str
        Words of the operator.
    target : str
        Name or file of the target.
    values : mapping of str to Any
        Values of the command's options, of which those about the result, the machine, the seed and
        the folder have a meaning.
    as_json : bool
        Print the document instead of the report.
    """
    from cpembed.driver.gradients import named_gradient, run_gradient
    from cpembed.report.gradients import gradient_report

    options.refuse_others("a gradient of several phases", *_OPTIONS, "seed", "save")
    settings = options.options_from(RunOptions, values)
    with output.ProgressLine() as progress:
        result = run_gradient(
            named_gradient(words, target), target, settings, save=settings.save, progress=progress
        )
    output.print_report(result, lambda: gradient_report(result), as_json=as_json)
    return 0


_OPTIONS = ("output", "relu", "chain", "machine", "timeout", "constraints")
"""Options of a kernel that have a meaning for those of all phases."""


def build_gradient_command(
    words: Sequence[str],
    target: str,
    folder: Path,
    values: Mapping[str, Any],
    *,
    as_json: bool,
) -> int:
    """Save the verified kernels of all phases and print what was verified; return the exit code.

    Parameters
    ----------
    words, target, as_json
        As in :func:`run_gradient_command`.
    folder : Path
        Folder to write to, in which the kernels have one of their name.
    values : mapping of str to Any
        Values of the command's options.
    """
    from cpembed.driver.gradients import build_gradient, named_gradient
    from cpembed.report.gradients import gradient_report

    options.refuse_others("a gradient of several phases", *_OPTIONS, "folder", "name", "torch")
    settings = options.options_from(RunOptions, values)
    with output.ProgressLine() as progress:
        result = build_gradient(
            named_gradient(words, target),
            target,
            folder / (values["name"] or "kernel"),
            settings,
            torch=values["torch"],
            progress=progress,
        )
    output.print_report(result, lambda: gradient_report(result), as_json=as_json)
    return 0

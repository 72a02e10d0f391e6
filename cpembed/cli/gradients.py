"""``cpembed run`` and ``build`` of gradients of strided convolutions by images, in all phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpembed.cli import options, output

if TYPE_CHECKING:
    from cpembed.cli.build import BuildArguments
    from cpembed.cli.kernels import RunArguments

_OPTIONS = ("output", "relu", "chain", "machine", "timeout", "constraints")
"""Options of a kernel that have a meaning for those of all phases."""


def run_gradient_command(arguments: RunArguments) -> int:
    """Build, verify and print the kernels of a gradient; return the exit code.

    Parameters
    ----------
    arguments : RunArguments
        Command line, whose words name a gradient.
    """
    from cpembed.driver.gradients import named_gradient, run_gradient
    from cpembed.report.gradients import gradient_report

    options.refuse_others("a gradient of several phases", *_OPTIONS, "seed", "save")
    target, settings = arguments.target, arguments.settings
    gradient = named_gradient(arguments.words, target)
    with output.ProgressLine() as progress:
        result = run_gradient(gradient, target, settings, save=settings.save, progress=progress)
    output.print_report(result, lambda: gradient_report(result), as_json=arguments.as_json)
    return 0


def build_gradient_command(arguments: BuildArguments, target: str) -> int:
    """Save the verified kernels of all phases and print what was verified; return the exit code.

    The kernels have a folder of the library's name.

    Parameters
    ----------
    arguments : BuildArguments
        Command line, whose words name a gradient.
    target : str
        Name or file of the target.
    """
    from cpembed.driver.gradients import build_gradient, named_gradient
    from cpembed.report.gradients import gradient_report

    options.refuse_others("a gradient of several phases", *_OPTIONS, "folder", "name", "torch")
    settings = arguments.settings
    gradient = named_gradient(arguments.words, target)
    with output.ProgressLine() as progress:
        result = build_gradient(
            gradient,
            target,
            arguments.folder / settings.name,
            settings,
            torch=settings.torch,
            progress=progress,
        )
    output.print_report(result, lambda: gradient_report(result), as_json=arguments.as_json)
    return 0

"""``cpembed build``: what people take away of a workload on a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
from click.core import ParameterSource

from cpembed.cli.build_network import build_model, is_model
from cpembed.cli.kernel_options import KernelAsked, kernel, kernel_options
from cpembed.cli.match import shapes_option
from cpembed.cli.options import (
    Subcommand,
    json_option,
    method_option,
    threads_option,
    use_threads,
)
from cpembed.cli.outcome import print_notes, print_solved, say_missing
from cpembed.cli.output import ProgressLine, print_json, print_text

if TYPE_CHECKING:
    from cpembed.driver.options import MethodName


@click.command(cls=Subcommand)
@kernel_options
@click.option(
    "-o",
    "--directory",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where it goes; files of the same names are replaced.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Of the library, and what its functions begin with.  [default: kernel, or the model's]",
)
@shapes_option
@method_option("implicit")
@threads_option("the library, where whoever opens it does not say")
@click.option("--torch", is_flag=True, help="With an operator of PyTorch.")
@json_option
def command(
    *,
    folder: Path,
    name: str | None,
    shapes: dict[str, tuple[int, ...]],
    method: MethodName,
    threads: int | None,
    torch: bool,
    as_json: bool,
    **asked: Unpack[KernelAsked],
) -> int:
    """Build a library of a workload's kernel, or of a whole model (.onnx, .pt2): plain C, Python
    with numpy, or PyTorch call it, and it needs nothing of what made it.

    The candidate is chosen as `cpembed run` chooses it. Of a target that is emulated here, what the
    library is made of on such a machine is written; of a simulated one, its program
    (docs/libraries.md).

    \b
    cpembed build deepbench:11 --target avx512_vnni -o layer --name layer
    cpembed build resnet18.onnx --target avx512_vnni -o resnet18
    cpembed build gemm m=64 n=64 k=64 --target avx2_int8 -o product --relu --output uint8 --scale
    """
    use_threads(threads)
    if is_model(asked["words"]):
        _require_options_of_models(click.get_current_context())
        return build_model(
            Path(asked["words"][0]),
            asked["target"],
            folder,
            name,
            shapes,
            torch=torch,
            timeout=asked["timeout"],
            as_json=as_json,
        )
    if shapes:
        raise click.UsageError("--shape is of a model, not of a workload: leave it out")
    from cpembed.driver.build import build
    from cpembed.driver.result import SolveResult

    given = kernel(asked)
    with ProgressLine() as progress:
        result = build(
            **given,
            folder=folder,
            name=name or "kernel",
            progress=progress,
            threads=threads or 0,
            torch=torch,
            method=method,
        )
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=asked["verbose"])
    print_notes(result.chosen.solved)
    stood_in = "the library is portable code, and slow"
    code = say_missing(result.missing, given["backend"], stood_in)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.build import report

        print_text(*report(result))
    return code


_OF_MODELS = frozenset(
    ("words", "target", "timeout", "folder", "name", "shapes", "threads", "torch", "as_json")
)
"""Parameters that a model has too."""


def _require_options_of_models(context: click.Context) -> None:
    """Refuse, of a whole model, what says something of one kernel."""
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _OF_MODELS:
            raise click.UsageError(
                f"{option.opts[0]} is of a workload, not of a model: leave it out"
            )

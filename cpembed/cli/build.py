"""``cpembed build``: what people take away of a workload on a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cpembed.cli.build_network import build_model, is_model
from cpembed.cli.match import shapes_option
from cpembed.cli.options import (
    Subcommand,
    json_option,
    library_options,
    options_from,
    require_one,
    subject,
    target_option,
    threads_option,
    use_threads,
    verbose_option,
    workload_argument,
)
from cpembed.cli.outcome import print_notes, print_solved, say_missing
from cpembed.cli.output import ProgressLine, print_json, print_text
from cpembed.driver.options import BuildOptions


@click.command(cls=Subcommand)
@workload_argument()
@target_option()
@click.option(
    "-o",
    "--directory",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where it goes; files of the same names are replaced.",
)
@library_options(
    BuildOptions,
    leave_out=["search", "seed", "threads"],
    defaults={"name": None},
    texts={
        "name": "Of the library, and what its functions begin with.  [default: kernel, or the "
        "model's]"
    },
)
@shapes_option
@threads_option("the library, where whoever opens it does not say")
@verbose_option
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str,
    folder: Path,
    shapes: dict[str, tuple[int, ...]],
    threads: int | None,
    verbose: bool,
    as_json: bool,
    **values: Any,
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
    if is_model(words):
        _require_options_of_models(click.get_current_context())
        return build_model(
            Path(words[0]),
            target,
            folder,
            values["name"],
            shapes,
            torch=values["torch"],
            timeout=values["timeout"],
            as_json=as_json,
        )
    if shapes:
        raise click.UsageError("--shape is of a model, not of a workload: leave it out")
    from cpembed.driver.build import build
    from cpembed.driver.result import SolveResult

    name = values["name"] or "kernel"
    options = options_from(BuildOptions, {**values, "name": name, "threads": threads or 0})
    require_one(rank=options.rank is not None, id=options.identifier is not None)
    resolved = subject(words, target, options)
    with ProgressLine() as progress:
        result = build(
            resolved.workload, resolved.target, folder, resolved.options, progress=progress
        )
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=verbose)
    print_notes(result.chosen.solved)
    stood_in = "the library is portable code, and slow"
    code = say_missing(result.missing, options.backend, stood_in)
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.run import build_report

        print_text(*build_report(result))
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

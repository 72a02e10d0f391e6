"""``cpembed build``: what people take away of a workload on a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from cpembed.cli.build_network import build_model, is_model
from cpembed.cli.match import shapes_option
from cpembed.cli.options import (
    Asked,
    Subcommand,
    backend_option,
    embedding_options,
    id_option,
    json_option,
    output_option,
    problem,
    rank_option,
    require_one,
    steps_options,
    threads_option,
    untuned_option,
    use_threads,
)
from cpembed.cli.outcome import UNAVAILABLE, print_notes, print_solved
from cpembed.cli.output import ProgressLine, message, print_json, print_text

if TYPE_CHECKING:
    from cpembed.api.build_result import BuildResult
    from cpembed.api.chosen import BackendChoice


@click.command(cls=Subcommand)
@embedding_options
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
@rank_option(
    "The candidate of this place in the ranking.  [default: what was tuned; else the fastest "
    "by the target's estimate of the best 8, where it compares them, or the best]"
)
@id_option
@backend_option("what works here.")
@threads_option("the library, where whoever opens it does not say")
@output_option(
    ["requantized", "int32", "int8", "uint8", "float32", "bfloat16"],
    "What is stored of the sums: this type, integers saturated.  [default: the sums]",
)
@steps_options
@click.option(
    "--shift",
    type=click.IntRange(0, 31),
    metavar="N",
    help="Bits by which integer sums are shifted right before they are stored as int8.",
)
@click.option("--torch", is_flag=True, help="With an operator of PyTorch.")
@untuned_option
@json_option
def command(
    *,
    folder: Path,
    name: str | None,
    shapes: dict[str, tuple[int, ...]],
    rank: int | None,
    identifier: str | None,
    backend: BackendChoice,
    threads: int | None,
    output: str | None,
    shift: int | None,
    bias: bool,
    scale: bool,
    relu: bool,
    torch: bool,
    untuned: bool,
    as_json: bool,
    **asked: Unpack[Asked],
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
    require_one(rank=rank is not None, id=identifier is not None)
    use_threads(threads)
    if is_model(asked["words"]):
        steps = {"--rank": rank, "--id": identifier, "--output": output, "--shift": shift}
        given = [option for option, value in steps.items() if value is not None]
        flags = {"--bias": bias, "--scale": scale, "--relu": relu, "--untuned": untuned}
        given += [option for option, value in flags.items() if value]
        if given:
            raise click.UsageError(f"{given[0]} is of a workload, not of a model: leave it out")
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
    from cpembed.api.build import build
    from cpembed.api.solve import SolveResult

    with ProgressLine() as progress:
        result = build(
            **problem(asked),
            folder=folder,
            name=name or "kernel",
            rank=rank,
            identifier=identifier,
            backend=backend,
            progress=progress,
            output=output,
            shift=shift,
            relu=relu,
            bias=bias,
            scale=scale,
            untuned=untuned,
            threads=threads or 0,
            torch=torch,
        )
    if isinstance(result, SolveResult):
        return print_solved(result, as_json=as_json, verbose=asked["verbose"])
    print_notes(result.chosen.solved)
    code = _say_missing(result) if backend != "generic" else 0
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.build import report

        print_text(*report(result))
    return code


def _say_missing(result: BuildResult) -> int:
    """Where portable code stands in for the instruction, say so; the exit code."""
    if not result.missing:
        return 0
    message(f"{'; '.join(result.missing)}: the library is portable code, and slow")
    return UNAVAILABLE

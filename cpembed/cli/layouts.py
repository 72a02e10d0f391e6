"""``cpembed layouts``: which layout of the tensors is the fastest."""

from __future__ import annotations

import click

from cpembed.cli.options import (
    Subcommand,
    json_option,
    target_option,
    threads_option,
    timeout_option,
    use_threads,
    workload_argument,
)
from cpembed.cli.outcome import INFEASIBLE
from cpembed.cli.output import Bar, print_json, print_text


@click.command(cls=Subcommand)
@workload_argument()
@target_option()
@click.option(
    "--measure",
    is_flag=True,
    help="Build, verify and time a kernel for each layout, or simulate it; without it times are "
    "estimates.",
)
@timeout_option("Stop each search after S seconds.")
@threads_option("the kernels")
@json_option
def command(
    *,
    words: tuple[str, ...],
    target: str,
    measure: bool,
    timeout: float | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Compare the layouts of WORKLOAD's tensors: of images channels first, channels last and in
    blocks, of matrices each as it is and transposed. Packing and unpacking count, but for weights.

    \b
    cpembed layouts conv2d n=1 c=64 h=56 w=56 k=64 r=3 s=3 pad=1 --target avx512_vnni
    cpembed layouts gemm m=64 n=64 k=256 --target avx512_vnni --measure
    """
    use_threads(threads)
    from cpembed.driver.layouts import compare_layouts

    with Bar("", None) as bar:

        def progress(name: str, done: int, total: int) -> None:
            bar.show(name, total=total, completed=done)

        result = compare_layouts(
            words, target, measures=measure, timeout=timeout, progress=progress
        )
    if as_json:
        print_json(result.to_json())
    else:
        from cpembed.report.layouts import report

        print_text(*report(result))
    return 0 if any(row.embedding is not None for row in result.rows) else INFEASIBLE

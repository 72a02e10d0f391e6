"""``cpembed bench --pack``: kernels of a suite for another machine, and what was measured there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from cpembed.cli.output import Bar, message, print_json, print_text
from cpembed.driver.options import BenchOptions

_APPLIES = frozenset(
    ("suite", "targets", "pack", "machine", "layers", "layout", "output", "bias", "scale", "relu",
     "constraints", "timeout", "shapes", "as_json", "verbose")
)  # fmt: skip
"""Parameters of ``cpembed bench`` that a pack depends on."""


def pack(
    suite: str, targets: Sequence[str], path: Path, options: BenchOptions, *, as_json: bool
) -> int:
    """Pack the layers of a suite; return the exit code.

    Parameters
    ----------
    suite : str
        Name of the suite, or its file.
    targets : sequence of str
        Names or files of the targets.
    path : Path
        Folder of the pack, or its file.
    options : BenchOptions
        Options of the command.
    as_json : bool
        True to print one JSON document.
    """
    from cpembed.driver.bench_pack import pack_items, write_pack

    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        # Defaults say nothing: only options that were written are wrong.
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in _APPLIES:
            problem = f"{option.opts[0]} does not change a pack, whose kernels run elsewhere"
            raise click.UsageError(f"{problem}: leave it out", context)
    items = pack_items(suite, targets, options)
    with Bar("packing", len(items)) as bar:

        def progress(name: str, steps: int) -> None:
            bar.show(name, advance=steps)

        result = write_pack(items, path, progress=progress)
    for name, reason in result.failed.items():
        message(f"{name}: {reason}")
    if as_json:
        print_json(result.to_json())
    else:
        layers = f"{len(result.slugs)} of {len(items)} layers, {result.bytes / 2**20:.1f} MiB"
        program = "run.py"
        if path.suffix == ".zip":
            program = f"python3 -m zipfile -e {path.name} {path.stem} && python3 {path.stem}/run.py"
        else:
            program = f"python3 {path.name}/run.py"
        print_text(
            f"{path}: {layers}",
            f"on a machine with a GPU: {program}",
            f"then here: cpembed bench {path.stem}/results/results.json",
        )
    return 0 if result.slugs else 1


def show_results(path: Path, *, as_json: bool) -> int:
    """Print what a pack's programs measured; return the exit code.

    Parameters
    ----------
    path : Path
        File that they wrote.
    as_json : bool
        True to print the document as it was checked.
    """
    from cpembed.driver.bench_pack import measured

    report, document = measured(path)
    if as_json:
        print_json(dict(document))
    else:
        print_text(report)
    return 0

"""``cpembed build`` of a whole model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cpembed.cli.output import Bar, print_json, print_text

SUFFIXES = (".onnx", ".pt2")
"""Of files that are models."""


def is_model(words: tuple[str, ...]) -> bool:
    """Whether the words of a workload name a model's file."""
    return len(words) == 1 and Path(words[0]).suffix.lower() in SUFFIXES


def build_model(
    model: Path,
    target: str,
    folder: Path,
    name: str | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    torch: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Write the library of a network, verified before; the exit code."""
    from cpembed.export.library import Contents
    from cpembed.frontends import load_model
    from cpembed.network.inputs import random_inputs
    from cpembed.network.plan import SEARCH_LIMIT, Planning
    from cpembed.network.service import NetworkRequest, network
    from cpembed.report.network import verified
    from cpembed.report.network_page.document import read

    graph = load_model(model, shapes or None)
    how = Planning(timeout=timeout or SEARCH_LIMIT)
    contents = Contents(torch=torch)
    asked = NetworkRequest(target, folder, how, times=False, name=name, contents=contents)
    with Bar("", None) as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.show(what, total=total, completed=done)

        result = network(graph, asked, random_inputs(graph, 0), progress)
    result.require()
    files = sorted(path.name for path in folder.iterdir())
    where = folder
    if result.library is not None:
        files, where = list(result.library.files), result.library.path
    if as_json:
        print_json({**result.document, "folder": str(folder), "files": files})
        return 0
    totals = result.document["totals"]
    sizes = ""
    if "bytes_weights" in totals:
        sizes = (
            f", {totals['bytes_weights'] / 1e6:.1f} MB of constants, "
            f"{totals['bytes_workspace'] / 1e6:.1f} MB of workspace"
        )
    print_text(
        f"{where}: {totals['embedded']} of {totals['products']} products embedded{sizes}",
        f"verified: {verified(read(result.document))}",
        f"files: {', '.join(files)}",
    )
    return 0

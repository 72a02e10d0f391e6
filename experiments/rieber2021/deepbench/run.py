"""Count the layers of DeepBench that the VTA GEMM core embeds in, and time the search.

    python -m experiments.rieber2021.deepbench.run

Writes ``results.md`` and ``results.json`` into ``--output``, by default beside this file; README.md
says what is expected. The exit code is 1 if the counts are not the paper's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.common import results_parser, write_results

FOLDER = Path(__file__).resolve().parent
TARGET = "vta_1x16x16"
EXPECTED = {"strict": 96, "strict_padded": 108}
"""Number of layers that embed under each set, after Rieber et al. 2021."""


def pin_to_one_core() -> int | None:
    """Keep the process, the solver's libraries included, on one core; return its number."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def measure() -> dict[str, Any]:
    """Search every layer in this process, without padding and with it."""
    from cpembed.driver.bench import open_bench

    with tempfile.TemporaryDirectory() as folder:
        bench = open_bench(
            "deepbench", TARGET, constraints="strict_padded", execute=False, results=Path(folder)
        )
        for row in bench.run():
            print(f"\r{len(bench.rows)}/{len(bench.layers)}", end="", file=sys.stderr)
            if row.error is not None:
                print(f"\nlayer {row.index}: {row.error.message}", file=sys.stderr)
        print(file=sys.stderr)
        return bench.to_json()


def short_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a row that the results keep."""
    short: dict[str, Any] = {"index": row["index"], "label": row["label"]}
    for name, part in (("strict", row["strict"]), ("strict_padded", row["best"])):
        embedding = part and part["embedding"]
        short[name] = part and {
            "status": part["status"],
            "mapping": embedding and embedding["mapping"],
            "utilisation": embedding and round(embedding["utilisation"], 4),
            "seconds": {phase: round(time, 5) for phase, time in part["seconds"].items()},
        }
        if part and part["reason"]:
            short[name]["reason"] = part["reason"]["text"]
    return short


def table(document: dict[str, Any], core: int | None, load: float) -> str:
    """Return the results in Markdown."""
    from cpembed.runtime.measurement.environment import provenance_lines

    summary = document["summary"]
    pinned = "not pinned to a core" if core is None else "pinned to one core"
    run = f"one process, {pinned}; load average {load:.2f} before the run"
    procedure = "each layer searched once per set, in a process that had solved one model before"
    lines = [
        f"# DeepBench on {TARGET}",
        "",
        "Written by `run.py`; see README.md.",
        "",
        "| constraint set | embedded | paper | median model+solve | longest | all layers |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for part in (summary["strict"], summary["best"]):
        name, seconds = part["constraints"], part["seconds"]
        lines.append(
            f"| `{name}` | {part['embedded']} of {summary['layers']} | {EXPECTED[name]} "
            f"| {seconds['median'] * 1e3:.1f} ms | {seconds['max'] * 1e3:.1f} ms "
            f"(layer {seconds['max_layer']}) | {seconds['sum']:.2f} s |"
        )
    lines += [
        "",
        f"- {procedure}; every solution is enumerated, on one thread",
        *provenance_lines(document, run),
        "",
        "## Layers that do not embed without padding",
        "",
        "| layer | workload | why |",
        "| --- | --- | --- |",
    ]
    for row in document["rows"]:
        if row["strict"] and row["strict"]["reason"]:
            why = row["strict"]["reason"]["text"]
            lines.append(f"| {row['index']} | `{row['label']}` | {why} |")
    return "\n".join(lines) + "\n"


def write(document: dict[str, Any], core: int | None, load: float, folder: Path) -> None:
    """Write the results, short, and their page.

    Parameters
    ----------
    document : dict
        Document of ``cpembed bench``.
    core : int or None
        Core that the process was pinned to.
    load : float
        Load average before the run.
    folder : Path
        Folder of the results.
    """
    results = {
        name: document[name]
        for name in ("suite", "target", "summary", "counted", "machine", "versions", "git_commit")
    }
    results["rows"] = [short_row(row) for row in document["rows"]]
    write_results(folder, results, table(document, core, load))


def main() -> int:
    """Run the command; return its exit code."""
    folder: Path = results_parser(__doc__, FOLDER).parse_args().output
    load = os.getloadavg()[0]
    core = pin_to_one_core()
    document = measure()
    write(document, core, load, folder)
    summary = document["summary"]
    embedded = {
        part["constraints"]: part["embedded"] for part in (summary["strict"], summary["best"])
    }
    print((folder / "results.md").read_text(encoding="utf-8"), end="")
    if embedded != EXPECTED:
        print(f"embedded {embedded}, the paper has {EXPECTED}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How many layers of DeepBench the VTA GEMM core embeds in, and how long the search takes.

    python experiments/deepbench/run.py

Writes ``results.md`` and ``results.json`` beside this file; README.md says what is expected. The
exit code is 1 where the counts are not the paper's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = "vta_1x16x16"
EXPECTED = {"strict": 96, "strict_padded": 108}
"""Layers that embed, after Rieber et al. 2021."""


def pin_to_one_core() -> int | None:
    """Keep the process, the solver's libraries included, on one core; which one it is."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def measure() -> dict[str, Any]:
    """Every layer in this process, without padding and with it."""
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


def short(row: dict[str, Any]) -> dict[str, Any]:
    """What the results keep of a row."""
    kept: dict[str, Any] = {"index": row["index"], "label": row["label"]}
    for name, part in (("strict", row["strict"]), ("strict_padded", row["best"])):
        found = part and part["embedding"]
        kept[name] = part and {
            "status": part["status"],
            "mapping": found and found["mapping"],
            "utilisation": found and round(found["utilisation"], 4),
            "seconds": {phase: round(time, 5) for phase, time in part["seconds"].items()},
        }
        if part and part["reason"]:
            kept[name]["reason"] = part["reason"]["text"]
    return kept


def table(document: dict[str, Any], core: int | None, load: float) -> str:
    """The results in Markdown."""
    from cpembed.runtime.measurement.environment import provenance_lines

    summary = document["summary"]
    pinned = "not pinned to a core" if core is None else "pinned to one core"
    run = f"one process, {pinned}; load average {load:.2f} before the run"
    how = "each layer searched once per set, in a process that had solved one model before"
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
        f"- {how}; every solution is enumerated, on one thread",
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


def write(document: dict[str, Any], core: int | None, load: float) -> None:
    (HERE / "results.md").write_text(table(document, core, load), encoding="utf-8")
    kept = {
        name: document[name]
        for name in ("suite", "target", "summary", "counted", "machine", "versions", "git_commit")
    }
    head = json.dumps(kept, indent=1, ensure_ascii=False).removesuffix("\n}")
    rows = ",\n  ".join(json.dumps(short(r), ensure_ascii=False) for r in document["rows"])
    text = f'{head},\n "rows": [\n  {rows}\n ]\n}}\n'
    (HERE / "results.json").write_text(text, encoding="utf-8")


def main() -> int:
    load = os.getloadavg()[0]
    core = pin_to_one_core()
    document = measure()
    write(document, core, load)
    summary = document["summary"]
    found = {part["constraints"]: part["embedded"] for part in (summary["strict"], summary["best"])}
    print((HERE / "results.md").read_text(encoding="utf-8"), end="")
    if found != EXPECTED:
        print(f"embedded {found}, the paper has {EXPECTED}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

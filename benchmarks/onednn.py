"""Compare our kernels with oneDNN's, for suites, targets and numbers of threads.

Each part is `cpembed bench SUITE --target T --baseline onednn`, whose rows are kept: an interrupted
run goes on where it stopped, and rows that were disturbed are measured again, as often as
``--attempts`` says. Calibrate first, on an idle machine, for each number of threads:

    cpembed calibrate
    cpembed calibrate --threads 1
    python -m benchmarks.onednn [--parts unit16/amx_int8/2 ...] [--tuned]

    python -m benchmarks.onednn --merge FILE [--note TEXT]

takes the parts of another machine's file in, and measures nothing; the note says what is
particular about them.

A part that ends in ``/requantized`` is of what a quantized network stores: a bias and a scale for
each channel, an activation, bytes, on both sides.

Writes ``onednn/MACHINE.json`` after every part and ``onednn.md`` into ``--output``, by default
beside this file. Ratios are oneDNN's time over ours in the same round, medians of rounds; a
geometric mean is over the layers that were compared undisturbed. The *peak* is the time of a
layer's products alone, on operands in registers and as many threads, timed in the same rounds:
oneDNN's time over it bounds the ratio of any kernel that computes the same products.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.documents import read_document, table, write_document
from cpembed.runtime.measurement.environment import provenance, provenance_lines
from experiments.common import geometric_mean

FOLDER = Path(__file__).resolve().parent
PARTS = [
    "unit16/amx_int8/2",
    "resnet50/amx_int8/2",
    "unit16/avx512_vnni/2",
    "unit16/avx_vnni/1",
    "unit16/amx_bf16/2",
    "odd/amx_int8/2",
    "unit16/amx_int8/1",
    "resnet50/amx_int8/1",
    "unit_conv3d/amx_int8/2",
    "mobilenet/amx_int8/2",
    "attention/amx_bf16/2",
    "deepbench/amx_int8/2",
    "unit16/amx_int8/1/requantized",
    "resnet50/amx_int8/1/requantized",
    "unit16/avx512_vnni/1/requantized",
    "mobilenet/avx512_vnni/1/requantized",
]
REQUANTIZED_PART = "requantized"
PART = f"SUITE[:LAYERS]/TARGET/THREADS[/{REQUANTIZED_PART}]"
REQUANTIZED = ["--output", "uint8", "--bias", "--scale", "--relu"]
NO_LAYOUT = ("gemm", "amos", "attention")
RATIOS = {
    "primitive_ratio": "primitive",
    "primitive_ratio_with_packing": "primitive, packing",
    "call_ratio": "call",
    "call_ratio_with_packing": "call, packing",
}

SUMMARISED = {**RATIOS, "primitive_over_peak": "primitive over peak"}

Row = dict[str, Any]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--parts", nargs="*", default=PARTS, metavar=PART)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--tuned", action="store_true", help="use what cpembed tune has kept")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--merge", type=Path, metavar="FILE", help="parts measured elsewhere")
    parser.add_argument("--note", help="what is particular about the parts that are merged")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    parts = stored_parts(options.output)
    if options.merge is not None:
        note = {"note": options.note} if options.note else {}
        merged_parts = read_parts(options.merge).items()
        write(options.output, parts | {name: part | note for name, part in merged_parts})
        return
    for name in options.parts:
        check(name)
    for name in options.parts:
        part = measured(name, options.attempts, tuned=options.tuned)
        # Each machine has its own.
        parts[f"{part['part']} on {cpu_of(part)}"] = part
        write(options.output, parts)


def write(folder: Path, parts: dict[str, Row]) -> None:
    """Write the parts of each machine as JSON, with each layer named once, and all as a page."""
    for cpu in machines(parts):
        machine_parts = {name: part for name, part in parts.items() if cpu_of(part) == cpu}
        rows = [row for part in machine_parts.values() for row in part["rows"]]
        numbers: dict[str, int] = {}
        for row in rows:
            numbers.setdefault(row["layer"], len(numbers))
        compact_parts = {
            # The summary of `bench` follows from the rows.
            name: {key: value for key, value in part.items() if key != "summary"}
            | {"rows": table([{**row, "layer": numbers[row["layer"]]} for row in part["rows"]])}
            for name, part in machine_parts.items()
        }
        path = folder / "onednn" / f"{re.sub(r'[^a-z0-9]+', '_', cpu.lower()).strip('_')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, {"layers": list(numbers), "parts": compact_parts})
    (folder / "onednn.md").write_text(text(parts))


def read_parts(path: Path) -> dict[str, Row]:
    """Return the parts of a file that :func:`write` wrote, with the layers' names in the rows."""
    document = read_document(path)
    for part in document["parts"].values():
        for row in part["rows"]:
            row["layer"] = document["layers"][row["layer"]]
    return document["parts"]


def stored_parts(folder: Path) -> dict[str, Row]:
    """Return the parts of all machines, the machine that was measured first at the beginning."""
    files = [read_parts(path) for path in (folder / "onednn").glob("*.json")]
    files.sort(key=lambda parts: min(part["provenance"]["date"] for part in parts.values()))
    return {name: part for parts in files for name, part in parts.items()}


def machines(parts: dict[str, Row]) -> list[str]:
    """Return the processors of some parts in the order of their first part."""
    return list(dict.fromkeys(cpu_of(part) for part in parts.values()))


def check(part: str) -> None:
    """Exit if a part has no valid name, before anything is measured under it."""
    if not re.fullmatch(rf"[^/]+/[^/]+/\d+(/{REQUANTIZED_PART})?", part):
        raise SystemExit(f"{part!r} is not {PART}")


def measured(name: str, attempts: int, *, tuned: bool) -> Row:
    """Measure a part, as often as its rows are disturbed.

    Parameters
    ----------
    name : str
        Part, in the form of :data:`PART`.
    attempts : int
        Maximum number of runs.
    tuned : bool
        True to use what ``cpembed tune`` has kept.
    """
    layers, target, threads, *stored = name.split("/")
    suite, _, only = layers.partition(":")
    layout = [] if suite in NO_LAYOUT else ["--layout", "NHWC"]
    command = [
        *(sys.executable, "-m", "cpembed", "bench", suite, "--target", target, *layout),
        *("--baseline", "onednn", "--threads", threads, "--json"),
        *(["--layers", only] if only else []),
        *([] if tuned else ["--untuned"]),
        *(REQUANTIZED if stored == [REQUANTIZED_PART] else []),
    ]
    document: Row = {}
    for _ in range(attempts):
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if not process.stdout.startswith("{"):
            raise SystemExit(f"{name}: cpembed bench ended with code {process.returncode}")
        document = json.loads(process.stdout)
        if not document["summary"]["run"]["baselines"]["onednn"].get("noisy"):
            break
    return {
        "part": name + ", tuned" * tuned,
        "provenance": {name: document[name] for name in provenance()},
        "epilogue": document["epilogue"],
        "summary": document["summary"]["run"]["baselines"]["onednn"],
        "verified": document["summary"]["run"]["verified"],
        "rows": [row_of(row) for row in document["rows"]],
    }


def row_of(row: Row) -> Row:
    """Return the figures that are stored of a row of ``bench``."""
    run: Row = row.get("run") or {}
    baselines: dict[str, Row] = run.get("baselines") or {}
    compared = baselines.get("onednn", {})
    times = ("primitive_us", "call_us", "ours_us", "ours_with_packing_us", "peak_us")
    figures = {name: median(compared, name) for name in (*SUMMARISED, *times)}
    figures |= {name: compared.get(name) for name in ("missing", "stored", "noisy", "slow_rounds")}
    return {
        "index": row["index"],
        "layer": row["label"],
        **figures,
        "verified": run.get("verified"),
    }


def median(compared: Row, name: str) -> float | None:
    """Return the median of a figure over the rounds."""
    quantiles: Row | None = compared.get(name)
    return None if quantiles is None else quantiles["median"]


def text(parts: dict[str, Row]) -> str:
    """Return the page."""
    lines = [
        "# Our kernels beside oneDNN's",
        "",
        "oneDNN's time over ours, above 1 where ours is faster: its own account of its computation",
        "(*primitive*), and a call through PyTorch (*call*); of our contraction on packed data,",
        "and with packing and unpacking (weights are packed ahead on both sides).",
        "*Primitive over peak*: its time over that of the products alone, which no kernel of the",
        "same products can exceed (those with padding can be left out). *requantized*: both store",
        "uint8 after a bias, a scale by channel and an activation; elsewhere they store what",
        "oneDNN's fastest form does. Made by `benchmarks/onednn.py`; how a row is measured:",
        "[benchmarks](../docs/benchmarks.md).",
        "",
    ]
    for cpu in machines(parts):
        machine_parts = [part for part in parts.values() if cpu_of(part) == cpu]
        notes = (f"{note}.\n" for note in _notes(machine_parts))
        lines += [f"## {cpu}", "", *notes, *_summary(machine_parts), ""]
    for number, (name, part) in enumerate(parts.items()):
        lines += [""] * (number > 0)
        run = f"{part['part'].split('/')[2]} threads"
        lines += [f"## {name}", "", *provenance_lines(part["provenance"], run)]
        lines += [*(f"- {note}" for note in _notes([part])), ""]
        lines += ["| layer | oneDNN us | ours us | with packing | peak us | ratio | with packing |"]
        lines += ["| --- |" + " --- |" * 6]
        lines += [_row_line(row) for row in part["rows"]]
    return "\n".join(lines) + "\n"


def _summary(parts: list[Row]) -> list[str]:
    """Return a table with a row of each part of one machine."""
    lines = [
        "| suite / target / threads | verified | compared | "
        + " | ".join(f"{name}: mean (least)" for name in SUMMARISED.values())
        + " |",
        "| --- |" + " --- |" * (len(SUMMARISED) + 2),
    ]
    for part in parts:
        cells = [_mean(part["rows"], name) for name in SUMMARISED]
        good = len(_counted(part["rows"], "call_ratio"))
        verified = f"{part['verified']} of {len(part['rows'])}"
        lines.append(f"| {part['part']} | {verified} | {good} | " + " | ".join(cells) + " |")
    return lines


def _notes(parts: list[Row]) -> list[str]:
    return list(dict.fromkeys(part["note"] for part in parts if "note" in part))


def cpu_of(part: Row) -> str:
    """Return the name of a part's processor."""
    return part["provenance"]["machine"]["cpu"]


def _counted(rows: list[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None and not row["noisy"]]


def _mean(rows: list[Row], name: str) -> str:
    ratios = _counted(rows, name)
    if not ratios:
        return "·"
    return f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})"


def _row_line(row: Row) -> str:
    if row["missing"] or row["call_us"] is None:
        return f"| {row['index']} {row['layer']} | {row['missing'] or 'no kernel'} | | | | |"
    primitive = row["primitive_us"] is not None
    baseline_us = row["primitive_us"] if primitive else row["call_us"]
    names = ("primitive_ratio", "primitive_ratio_with_packing")
    ratios = [row[name if primitive else name.replace("primitive", "call")] for name in names]
    times = (baseline_us, row["ours_us"], row["ours_with_packing_us"], row.get("peak_us"))
    cells = ["·" if us is None else f"{us:.1f}" for us in times]
    cells += [f"{ratio:.2f}" for ratio in ratios]
    mark = " (disturbed)" if row["noisy"] else ""
    return f"| {row['index']} {row['layer']}{mark} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()

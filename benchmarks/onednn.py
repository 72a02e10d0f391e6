"""Our kernels beside oneDNN's: suites, targets, threads; written down with what was measured.

Each part is `cpembed bench SUITE --target T --baseline onednn`, whose rows are kept: an interrupted
run goes on where it stopped, and rows that were disturbed are measured again, as often as
``--attempts`` says. Calibrate first, on an idle machine, for each number of threads:

    cpembed calibrate
    cpembed calibrate --threads 1
    python benchmarks/onednn.py [--parts unit16/amx_int8/2 ...] [--tuned]

    python benchmarks/onednn.py --merge FILE [--note TEXT]

takes the parts of another machine's ``onednn.json`` in, and measures nothing; the note says what is
particular about them.

A part that ends in ``/requantized`` is of what a quantized network stores: a bias and a scale for
each channel, an activation, bytes, on both sides.

Writes ``onednn.json`` after every part and ``onednn.md`` into ``--output``, by default beside this
file. Ratios are oneDNN's time over ours in the same round, medians of rounds; a geometric mean is
over the layers that were compared undisturbed. The *peak* is the time of a layer's products alone,
on operands in registers and as many threads, timed in the same rounds: oneDNN's time over it bounds
the ratio of any kernel that computes the same products.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cpembed.runtime.measurement.environment import provenance, provenance_lines

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--parts", nargs="*", default=PARTS, metavar=PART)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--tuned", action="store_true", help="use what cpembed tune has kept")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--merge", type=Path, metavar="FILE", help="parts measured elsewhere")
    parser.add_argument("--note", help="what is particular about the parts that are merged")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    file = asked.output / "onednn.json"
    parts: dict[str, Row] = json.loads(file.read_text())["parts"] if file.exists() else {}
    if asked.merge is not None:
        others: dict[str, Row] = json.loads(asked.merge.read_text())["parts"]
        note = {"note": asked.note} if asked.note else {}
        write(asked.output, parts | {name: found | note for name, found in others.items()})
        return
    for part in asked.parts:
        check(part)
    for part in asked.parts:
        found = measured(part, asked.attempts, tuned=asked.tuned)
        # Each machine has its own.
        parts[f"{found['part']} on {cpu_of(found)}"] = found
        write(asked.output, parts)


def write(folder: Path, parts: dict[str, Row]) -> None:
    (folder / "onednn.json").write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    (folder / "onednn.md").write_text(text(parts))


def check(part: str) -> None:
    """Before anything is measured under a wrong name."""
    if not re.fullmatch(rf"[^/]+/[^/]+/\d+(/{REQUANTIZED_PART})?", part):
        raise SystemExit(f"{part!r} is not {PART}")


def measured(part: str, attempts: int, *, tuned: bool) -> Row:
    layers, target, threads, *stored = part.split("/")
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
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if not done.stdout.startswith("{"):
            raise SystemExit(f"{part}: cpembed bench ended with code {done.returncode}")
        document = json.loads(done.stdout)
        if not document["summary"]["run"]["baselines"]["onednn"].get("noisy"):
            break
    return {
        "part": part + ", tuned" * tuned,
        "provenance": {name: document[name] for name in provenance()},
        "epilogue": document["epilogue"],
        "summary": document["summary"]["run"]["baselines"]["onednn"],
        "verified": document["summary"]["run"]["verified"],
        "rows": [row_of(row) for row in document["rows"]],
    }


def row_of(row: Row) -> Row:
    run: Row = row.get("run") or {}
    baselines: dict[str, Row] = run.get("baselines") or {}
    compared = baselines.get("onednn", {})
    times = ("primitive_us", "call_us", "ours_us", "ours_with_packing_us", "peak_us")
    kept = {name: median(compared, name) for name in (*SUMMARISED, *times)}
    kept |= {name: compared.get(name) for name in ("missing", "stored", "noisy", "slow_rounds")}
    return {"index": row["index"], "layer": row["label"], **kept, "verified": run.get("verified")}


def median(compared: Row, name: str) -> float | None:
    quantiles: Row | None = compared.get(name)
    return None if quantiles is None else quantiles["median"]


def text(parts: dict[str, Row]) -> str:
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
    machines = dict.fromkeys(cpu_of(found) for found in parts.values())
    for cpu in machines:
        here = [found for found in parts.values() if cpu_of(found) == cpu]
        lines += [f"## {cpu}", "", *(f"{note}.\n" for note in _notes(here)), *_summary(here), ""]
    for number, (name, found) in enumerate(parts.items()):
        lines += [""] * (number > 0)
        run = f"{found['part'].split('/')[2]} threads"
        lines += [f"## {name}", "", *provenance_lines(found["provenance"], run)]
        lines += [*(f"- {note}" for note in _notes([found])), ""]
        lines += ["| layer | oneDNN us | ours us | with packing | peak us | ratio | with packing |"]
        lines += ["| --- |" + " --- |" * 6]
        lines += [_row_line(row) for row in found["rows"]]
    return "\n".join(lines) + "\n"


def _summary(parts: list[Row]) -> list[str]:
    """Of one machine, a row a part."""
    lines = [
        "| suite / target / threads | verified | compared | "
        + " | ".join(f"{name}: mean (least)" for name in SUMMARISED.values())
        + " |",
        "| --- |" + " --- |" * (len(SUMMARISED) + 2),
    ]
    for found in parts:
        cells = [_mean(found["rows"], name) for name in SUMMARISED]
        good = len(_counted(found["rows"], "call_ratio"))
        verified = f"{found['verified']} of {len(found['rows'])}"
        lines.append(f"| {found['part']} | {verified} | {good} | " + " | ".join(cells) + " |")
    return lines


def _notes(parts: list[Row]) -> list[str]:
    return list(dict.fromkeys(found["note"] for found in parts if "note" in found))


def cpu_of(found: Row) -> str:
    return found["provenance"]["machine"]["cpu"]


def _counted(rows: list[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None and not row["noisy"]]


def _mean(rows: list[Row], name: str) -> str:
    found = _counted(rows, name)
    if not found:
        return "·"
    product = 1.0
    for ratio in found:
        product *= ratio ** (1 / len(found))
    return f"{product:.2f} ({min(found):.2f})"


def _row_line(row: Row) -> str:
    if row["missing"] or row["call_us"] is None:
        return f"| {row['index']} {row['layer']} | {row['missing'] or 'no kernel'} | | | | |"
    primitive = row["primitive_us"] is not None
    theirs = row["primitive_us"] if primitive else row["call_us"]
    names = ("primitive_ratio", "primitive_ratio_with_packing")
    ratios = [row[name if primitive else name.replace("primitive", "call")] for name in names]
    times = (theirs, row["ours_us"], row["ours_with_packing_us"], row.get("peak_us"))
    cells = ["·" if us is None else f"{us:.1f}" for us in times]
    cells += [f"{ratio:.2f}" for ratio in ratios]
    mark = " (disturbed)" if row["noisy"] else ""
    return f"| {row['index']} {row['layer']}{mark} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()

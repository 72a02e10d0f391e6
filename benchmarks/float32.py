"""float32 on this processor: our kernels beside oneDNN's primitives, MKL's and OpenBLAS's sgemm,
and the model's choice of a schedule beside all schedules.

    cpembed calibrate --threads 1
    python benchmarks/float32.py [--target avx2_f32] [--parts unit16 gemm:0-20 ...]
    python benchmarks/float32.py --choice [--layers 20] [--schedules 60]

A part is `cpembed bench SUITE --target T --baseline ... --threads 1 --untuned`, whose rows are
kept: an interrupted run goes on where it stopped. Convolutions have their channels last on both
sides, weights are packed ahead on both sides where the library can. A ratio is the library's time
over ours in the same round, the median of rounds: oneDNN's own account of its computation over our
contraction with packing and unpacking, or a call of BLAS over such a call of ours. Geometric means
are over all rows; rows that other work on the machine disturbed are marked and counted.

``--choice``: of layers spread evenly over the suites, what is chosen untuned against the schedules
of all its candidates, or as many of them as ``--schedules`` says, spread evenly over the ranking.
Each is compiled and meets the chosen one interleaved, the fastest ones again in longer rounds. The
time of the choice is search, estimates and one compilation; that of brute force all compilations
and measurements.

Writes ``float32.json`` and ``float32.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from onednn import cpu_of, median

from cpembed.measure.environment import provenance, provenance_lines

HERE = Path(__file__).resolve().parent
PARTS = ("unit16", "resnet50", "deepbench", "gemm")
BASELINES = {"gemm": ("onednn", "mkl", "openblas")}
"""By suite; of the others oneDNN."""
CHOICE_SUITES = ("unit16", "resnet50", "deepbench", "gemm")
MOST_MACS, MOST_BYTES = 1e9, 2**26
"""Of a layer that brute force takes: it measures some hundred kernels, each with its operands."""
FINALISTS, ROUNDS, ROUND_MS = 3, 21, 5.0

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--target", default="avx512_f32")
    parser.add_argument("--parts", nargs="*", default=PARTS, metavar="SUITE[:LAYERS]")
    parser.add_argument("--choice", action="store_true", help="the model against all schedules")
    parser.add_argument("--layers", type=int, default=20, help="of --choice")
    parser.add_argument("--schedules", type=int, help="of a layer, at most")
    parser.add_argument("--results", type=Path, help="folder that keeps completed rows")
    parser.add_argument("--output", type=Path, default=HERE)
    asked = parser.parse_args()
    # Before TVM is loaded.
    os.environ["TVM_NUM_THREADS"] = "1"
    asked.output.mkdir(parents=True, exist_ok=True)
    file = asked.output / "float32.json"
    parts: dict[str, Row] = json.loads(file.read_text())["parts"] if file.exists() else {}
    if asked.choice:
        found = chosen(asked.target, asked.layers, asked.schedules)
        parts[f"choice/{asked.target} on {cpu_of(found)}"] = found
        write(asked.output, parts)
        return
    for part in asked.parts:
        found = measured(part, asked.target, asked.results)
        parts[f"{part}/{asked.target} on {cpu_of(found)}"] = found
        write(asked.output, parts)


def measured(part: str, target: str, results: Path | None) -> Row:
    suite, _, only = part.partition(":")
    names = BASELINES.get(suite, ("onednn",))
    command = [
        *(sys.executable, "-m", "cpembed", "bench", suite, "--target", target, "--untuned"),
        *("--baseline", ",".join(names), "--threads", "1", "--json"),
        *([] if suite == "gemm" else ["--layout", "NHWC"]),
        *(["--layers", only] if only else []),
        *([] if results is None else ["--results", str(results)]),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{part}: cpembed bench ended with code {done.returncode}")
    document = json.loads(done.stdout)
    return {
        "provenance": {name: document[name] for name in provenance()},
        "baselines": list(names),
        "rows": [row_of(row, names) for row in document["rows"]],
    }


def row_of(row: Row, names: tuple[str, ...]) -> Row:
    run: Row = row.get("run") or {}
    found: Row = {"index": row["index"], "layer": row["label"], "verified": run.get("verified")}
    for name in names:
        compared: Row = (run.get("baselines") or {}).get(name, {})
        primitive = median(compared, "primitive_us") is not None
        kind = "primitive" if primitive else "call"
        found[name] = {
            "theirs_us": median(compared, f"{kind}_us"),
            "ours_us": median(compared, "ours_with_packing_us"),
            "peak_us": median(compared, "peak_us"),
            "ratio": median(compared, f"{kind}_ratio_with_packing"),
            "call_ratio": median(compared, "call_ratio_with_packing"),
            "noisy": compared.get("noisy"),
            "missing": compared.get("missing"),
        }
    return found


def chosen(target: str, count: int, most: int | None) -> Row:
    from cpembed.workloads.suites import DEFAULT_LAYOUT, suite

    layers = [
        (layer, layer.workload(("float32", "float32"), layout))
        for name in CHOICE_SUITES
        for layout in [DEFAULT_LAYOUT if name == "gemm" else "NHWC"]
        for layer in suite(name)
    ]
    layers = [
        (layer, workload)
        for layer, workload in layers
        if workload.macs <= MOST_MACS
        and 4 * sum(math.prod(o.shape) for o in workload.operands) <= MOST_BYTES
    ]
    spread = [layers[(2 * n + 1) * len(layers) // (2 * count)] for n in range(count)]
    rows: list[Row] = []
    for layer, workload in spread:
        rows.append({"layer": layer.label, **choice_of(workload, target, most)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return {"provenance": provenance(), "most": most, "rows": rows}


def choice_of(workload: Any, target: str, most: int | None) -> Row:
    """What is chosen untuned, beside each of the schedules of its candidates."""
    from cpembed.api.chosen import Chosen, Request, choose
    from cpembed.ir.reference import random_inputs
    from cpembed.targets.choice import compared

    started = time.perf_counter()
    asked = choose(Request(workload, target, untuned=True))
    if not isinstance(asked, Chosen):
        raise SystemExit(f"{workload.name}: {target} has no embedding of it")
    plan = asked.plan
    first = plan.choices[0]
    built = plan.target.build(plan.target.lower(first.candidate.candidate.program), first.schedule)
    chosen_s = time.perf_counter() - started
    inputs = random_inputs(workload, 1)
    incumbent = whole_call(built, inputs)
    started = time.perf_counter()
    everything = []
    for item in compared(plan.target, [one.candidate for one in plan.choices]).estimates:
        lowered = plan.target.lower(item.ranked.candidate.program)
        everything += [(lowered, one.schedule) for one in plan.target.space(lowered).ranked()]
    step = 1 if most is None else max(1.0, len(everything) / most)
    taken = [everything[int(n * step)] for n in range(int(len(everything) / step))]

    def call_of(lowered: Any, schedule: Any) -> Any:
        return whole_call(plan.target.build(lowered, schedule), inputs)

    # Calls hold their operands: none is kept.
    found = [ratio(incumbent, call_of(*one), rounds=3, ms=1.0) for one in taken]
    brute_s = time.perf_counter() - started
    finalists = sorted(range(len(taken)), key=found.__getitem__)[-FINALISTS:]
    best = max(
        ratio(incumbent, call_of(*taken[one]), rounds=ROUNDS, ms=ROUND_MS) for one in finalists
    )
    return {
        "target": plan.target.spec.name,
        "schedules": len(everything),
        "measured": len(taken),
        "slower_than_best": max(1.0, best),
        "chosen_s": chosen_s,
        "brute_force_s": brute_s * len(everything) / len(taken),
    }


def whole_call(kernel: Any, inputs: Any) -> Any:
    """A call that packs and unpacks what is not packed ahead."""
    from cpembed.kernel.packing import packed_before

    packed = {name: kernel.pack(name, inputs[name]) for name in kernel.input_names}
    output = kernel.execute(packed)
    return kernel.bound_whole(inputs, packed, packed_before(kernel.program.workload), output)


def ratio(incumbent: Any, other: Any, *, rounds: int, ms: float) -> float:
    """The incumbent's time over the other's, the median of rounds in turns."""
    each = [max(1, int(ms / 1e3 / max(1e-7, seconds(call, 1)))) for call in (incumbent, other)]
    pairs = [(seconds(incumbent, each[0]), seconds(other, each[1])) for _ in range(rounds)]
    return statistics.median(mine / theirs for mine, theirs in pairs)


def seconds(call: Any, times: int) -> float:
    call()
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def write(folder: Path, parts: dict[str, Row]) -> None:
    (folder / "float32.json").write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    (folder / "float32.md").write_text(text(parts))


def text(parts: dict[str, Row]) -> str:
    lines = [
        "# float32 beside oneDNN, MKL and OpenBLAS",
        "",
        "A library's time over ours, one thread, untuned, weights packed ahead: above 1 where ours",
        "is faster. Of oneDNN its own account of its computation, and in the last column a call",
        "through PyTorch; of BLAS a call. *Peak*: the products alone, on registers. Made by",
        "`benchmarks/float32.py`; how a row is measured: [benchmarks](../docs/benchmarks.md).",
        "",
        "| suite / target, processor | beside | rows | disturbed | mean | least | call: mean |",
        "| --- |" + " --- |" * 6,
    ]
    for name, found in parts.items():
        for library in found.get("baselines", ()):
            rows = [row[library] for row in found["rows"] if row[library]["ratio"] is not None]
            ratios = [row["ratio"] for row in rows]
            if ratios:
                mean, calls = mean_of(ratios), mean_of([row["call_ratio"] for row in rows])
                disturbed = sum(bool(row["noisy"]) for row in rows)
                lines.append(
                    f"| {name} | {library} | {len(rows)} | {disturbed} | {mean:.2f} "
                    f"| {min(ratios):.2f} | {calls:.2f} |"
                )
    for name, found in parts.items():
        lines += ["", f"## {name}", "", *provenance_lines(found["provenance"], "1 thread"), ""]
        lines += choice_lines(found) if "most" in found else part_lines(found)
    return "\n".join(lines) + "\n"


def mean_of(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)


def part_lines(found: Row) -> list[str]:
    names = found["baselines"]
    lines = ["| layer | ours us | peak us | " + " | ".join(f"{n} us | ratio" for n in names) + " |"]
    lines += ["| --- |" + " --- |" * (2 + 2 * len(names))]
    for row in found["rows"]:
        first = row[names[0]]
        cells = [f"{row['index']} {row['layer']}", us(first["ours_us"]), us(first["peak_us"])]
        for name in names:
            one = row[name]
            mark = " (disturbed)" if one["noisy"] else ""
            known = one["ratio"] is not None
            cells += [us(one["theirs_us"]), f"{one['ratio']:.2f}{mark}" if known else "·"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def choice_lines(found: Row) -> list[str]:
    rows = found["rows"]
    worst = max(row["slower_than_best"] for row in rows)
    share = max(row["chosen_s"] / row["brute_force_s"] for row in rows)
    limit = "all schedules" if found["most"] is None else f"at most {found['most']} of a layer"
    lines = [
        f"The model's choice against measuring {limit}: at worst {worst:.3f} times the best one's",
        f"time, at {share:.4f} of the time of measuring all, or less.",
        "",
        "| layer | on | schedules | measured | chosen over best | chosen in s | all in s |",
        "| --- |" + " --- |" * 6,
    ]
    lines += [
        f"| {row['layer']} | {row['target']} | {row['schedules']} | {row['measured']} "
        f"| {row['slower_than_best']:.3f} | {row['chosen_s']:.2f} | {row['brute_force_s']:.0f} |"
        for row in rows
    ]
    return lines


def us(time_us: float | None) -> str:
    return "·" if time_us is None else f"{time_us:.1f}"


if __name__ == "__main__":
    main()

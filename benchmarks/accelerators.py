"""Plan, prove and emulate whole networks on accelerators that instruction sets describe.

    python -m tests.models resnet18 --signed -o MODELS/resnet18.onnx
    python -m benchmarks.accelerators MODELS/resnet18.onnx [...] --target gemmini --target tpu_like

A target may be a file, such as ``examples/accelerator/dsp.toml``.

Every program is proven against its specification, executed by the executor that is generated from
the machine's description, and compared with its specification; what the host does is named. Cycles
are emulated, under the costs of the description; seconds are those of the processor.

Writes ``accelerators.json`` and ``accelerators.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import write_document
from cpembed.accelerator.document import network_document
from cpembed.accelerator.network import plan_network
from cpembed.accelerator.network_proof import prove_network
from cpembed.accelerator.network_run import run_network
from cpembed.files import write_whole
from cpembed.frontends import load_model
from cpembed.graph.passes import prepare
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.network.inputs import random_inputs
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent


def measured(model: Path, target: str) -> dict[str, Any]:
    """Return the figures of one network on one machine."""
    machine = load_instruction_set(target)
    graph = prepare(load_model(model), first="int8", second="int8")
    marks = [time.process_time()]
    network = plan_network(graph, machine)
    marks.append(time.process_time())
    proven = prove_network(network)
    network, proofs = proven.network, proven.proofs
    marks.append(time.process_time())
    run = run_network(network, random_inputs(graph, 0))
    marks.append(time.process_time())
    document = network_document(network, run, proofs)
    totals = document["totals"]
    steps = [step for step in document["steps"] if step["kind"] in ("host", "layout")]
    parts = [step for step in document["steps"] if step.get("host")]
    refusals = [
        f"{step['operator']}: {step['proof']['refusal']}"
        for step in document["steps"]
        if step["kind"] == "program" and not step["proven"]
    ]
    return {
        "model": model.stem,
        "target": machine.name,
        "programs": totals["programs"],
        "operators": totals["operators_on_machine"],
        "proven": totals["operators_proven"],
        "host": [
            *(f"{s.get('operator', s.get('tensor'))} ({s['kind']})" for s in steps),
            *(f"{s['operator']} (statements)" for s in parts),
        ],
        "host_us": totals["host_us"],
        "cycles": totals["cycles"],
        "estimated_cycles": totals["estimated_cycles"],
        "estimated_cycles_apart": _without_chains(document, "estimated_cycles"),
        "main_bytes": totals["main_bytes"],
        "main_bytes_apart": totals["main_bytes"] + totals["main_bytes_saved"],
        "bound_cycles": totals["bound_cycles"],
        "macs": totals["macs"],
        "verified": totals["verified"],
        "largest_deviation": totals["largest_deviation"],
        "refusals": refusals,
        "seconds": {
            name: round(after - before, 1)
            for name, before, after in zip(
                ("planning", "proving", "emulating"), marks, marks[1:], strict=False
            )
        },
    }


def _without_chains(document: dict[str, Any], key: str) -> float:
    """Return an estimate of all programs if each operator had one of its own."""
    programs = [step for step in document["steps"] if step["kind"] == "program"]
    return sum(step.get("chain", {}).get(f"{key}_apart", step[key]) for step in programs)


COLUMNS = (
    "network", "machine", "operators", "proven", "on the host", "host us", "cycles", "bound",
    "estimate", "estimate apart", "bytes", "bytes apart", "verified",
    "planning s", "proving s", "emulating s",
)  # fmt: skip
NOTE = """Cycles are emulated, one program after the other; the bound is that of every plan of the
network with the same matches. Estimates and bytes of main memory are given for programs of one
operator each (apart) too, between which all tensors go through main memory. On the host are whole
operators, changes of layout, and statements of operators whose other statements the machine
executes; their time is the description's estimate. Seconds are those of the processor, without the
compilation of the machine's executor."""


def page(rows: list[dict[str, Any]], lines: list[str]) -> str:
    """Return the page of results."""
    text = ["# Networks on accelerators", "", *lines, "", NOTE, ""]
    text += [f"| {' | '.join(COLUMNS)} |", "| --- " * 2 + "| --: " * 14 + "|"]
    text += [f"| {' | '.join(cells(row))} |" for row in rows]
    for row in rows:
        if row["host"] or row["refusals"]:
            text += ["", f"{row['model']} on {row['target']}:", ""]
            text += [f"- on the host: {', '.join(row['host'])}"] if row["host"] else []
            text += [f"- not proven: {refusal}" for refusal in row["refusals"]]
    return "\n".join(text) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a network on a machine."""
    verified = "equal" if row["verified"] else "no"
    if row["largest_deviation"]:
        verified += f", within {row['largest_deviation']:.3g} of the model"
    return [
        row["model"],
        row["target"],
        str(row["operators"]),
        str(row["proven"]),
        str(len(row["host"])),
        f"{row['host_us']:,.0f}",
        f"{row['cycles']:,.0f}",
        f"{row['bound_cycles']:,.0f}",
        f"{row['estimated_cycles']:,.0f}",
        f"{row['estimated_cycles_apart']:,.0f}",
        f"{row['main_bytes']:,}",
        f"{row['main_bytes_apart']:,}",
        verified,
        *map(str, row["seconds"].values()),
    ]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerators", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--note", default="", help="a sentence on the models for the page")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for target in options.target:
        for model in options.models:
            print(f"{model.stem} on {target}", flush=True)
            rows.append(measured(model, target))
    document = {**provenance(), "rows": rows}
    write_document(options.output / "accelerators.json", document)
    lines = provenance_lines(document, "emulated")
    if options.note:
        lines.append(f"- {options.note}")
    write_whole(options.output / "accelerators.md", page(rows, lines))


if __name__ == "__main__":
    main()

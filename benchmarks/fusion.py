"""Compare our fused schedules with AccelForge's: a block of GPT-3 6.7B on a machine like TPU v4i.

    python -m benchmarks.fusion [--peers FOLDER --python PYTHON3.12] [--limit 1800]

writes ``fusion.json`` and ``fusion.md`` beside this file. With ``--peers``, AccelForge is installed
into an environment in FOLDER, unless it is there, and runs as a process for each objective, fused
and unfused; what is in the JSON file is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import mappers
from benchmarks.accelforge import PACKAGE, VERSION
from cpembed.driver.fusion import FusionResult, fuse_block, read_block

FOLDER = Path(__file__).resolve().parent
BLOCKS = FOLDER / "blocks"
TARGETS = (str(BLOCKS / "tpu_v4i.toml"), str(BLOCKS / "tpu_v4i_vector.toml"))
OBJECTIVES = ("energy", "cycles")
TOKENS = 8192

NOTES = """
Made by `benchmarks/fusion.py`. The block is AccelForge's `gpt3_6.7B` of 8,192 tokens, the machine
its `tpu_v4i`: four matrix units of 128 x 128 and four vector units of 128 lanes at 1,050 MHz, 4 MiB
beside each, 128 MiB on chip, 614 GB/s to main memory; ours are `benchmarks/blocks/*.toml`. Each
objective is searched for alone. *Gap* is how far ours is from the bound of our model at most.
Seconds are processor time of one process; ours include the embeddings and are those of fused and
unfused schedules together, theirs are of the search alone. Nothing is measured on hardware: both
sides are estimates.

Differences:

- AccelForge's block begins with a copy of the input from main memory: 0.05 ms and 2.4 mJ. Ours
  reads the input where it is used, and keeps it on chip from then on.
- A tensor may pass the memory on chip by there (its schedule writes Q and the result to main memory
  from the buffer beside the units), which saves a write and a read on chip; ours always passes it.
  This is the difference between the unfused schedules: where our mapping search of single operators
  may pass that memory by (`bypass` in the machine), they take 894.0 mJ in place of 1,200.4.
- Its machine demands that all units work, ours does not: our mapping of the least energy leaves
  units idle where that costs no energy, and takes longer.
- Its mapping of the least latency takes as long as both unfused schedules, longer than its mapping
  of the least energy (36.01 ms). Why was not examined.
- Writes to the memory on chip from main memory take none of its bandwidth in our model.
"""


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="folder of the environment")
    parser.add_argument("--python", default="", help="Python that makes it, by default this one")
    parser.add_argument("--limit", type=int, default=1200, help="seconds of a search")
    options = parser.parse_args()
    document = FOLDER / "fusion.json"
    results: dict[str, Any] = {}
    if document.exists():
        results = json.loads(document.read_text(encoding="utf-8"))["results"]
    for objective in OBJECTIVES:
        for is_fused in (True, False):
            key = f"{objective}, {'fused' if is_fused else 'unfused'}"
            entry = results.setdefault(key, {})
            if options.peers is not None and "theirs" not in entry:
                entry["theirs"] = peer_figures(objective, options, is_fused=is_fused)
            document.write_text(json.dumps({"results": results}, indent=1) + "\n", "utf-8")
        begin = time.process_time()
        result = fuse_block(read_block(BLOCKS / "gpt3_6_7b.toml"), TARGETS, objective=objective)
        seconds = time.process_time() - begin
        for word, uses in (("fused", result.fused.uses), ("unfused", result.fused.unfused_uses)):
            totals = result.totals(uses)
            results[f"{objective}, {word}"]["ours"] = {
                "ms": totals["cycles"] / 1.05e6,
                "mJ": totals["energy_pj"] / 1e9,
                "gap": result.fused.gap if word == "fused" else None,
                "seconds": seconds if word == "fused" else None,
            }
        document.write_text(json.dumps({"results": results}, indent=1) + "\n", "utf-8")
        write_page(results, result)


def peer_figures(objective: str, options: argparse.Namespace, *, is_fused: bool) -> dict[str, Any]:
    """Return AccelForge's latency, energy and seconds, or why there are none.

    Parameters
    ----------
    objective : str
        ``cycles`` or ``energy``.
    options : argparse.Namespace
        Folder of the environment, its Python, and the limit in seconds.
    is_fused : bool
        False if every tensor goes through main memory.
    """
    executable = mappers.peer_python(
        options.peers.absolute() / f"{PACKAGE}-{VERSION}",
        options.python,
        (f"{PACKAGE}=={VERSION}",),
    )
    request = {"objective": objective, "fused": is_fused, "tokens": TOKENS}
    return mappers.peer(
        executable, FOLDER / "peers" / "accelforge_block.py", request, options.limit
    )


def write_page(results: dict[str, Any], result: FusionResult) -> None:
    """Write the page.

    Parameters
    ----------
    results : dict
        Figures of both sides by objective and fusion.
    result : FusionResult
        Schedule of the last objective.
    """
    lines = [
        "# Our fused block beside AccelForge's",
        "",
        *mappers.environment({PACKAGE: VERSION}),
        "",
        NOTES.strip(),
        "",
        "| objective | ours, ms | ours, mJ | gap | ours, s | theirs, ms | theirs, mJ | theirs, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, entry in results.items():
        if "ours" not in entry:
            continue
        mine, peer = entry["ours"], entry.get("theirs", {"problem": "not run"})
        gap = "·" if mine["gap"] is None else f"{mine['gap']:.1%}"
        seconds = "·" if mine["seconds"] is None else f"{mine['seconds']:.0f}"
        tail = (
            f"{peer['problem']} | · | ·"
            if "problem" in peer
            else (f"{peer['ms']:.2f} | {peer['mJ']:.1f} | {peer['seconds']:.0f}")
        )
        lines.append(
            f"| {key} | {mine['ms']:.2f} | {mine['mJ']:.1f} | {gap} | {seconds} | {tail} |"
        )
    names = ", ".join(operator.name for operator in result.block.operators)
    lines += ["", f"Operators: {names}.", ""]
    (FOLDER / "fusion.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()

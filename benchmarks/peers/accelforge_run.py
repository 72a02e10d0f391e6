"""One layer mapped by AccelForge; runs in its own environment, which has no cpembed.

Reads a request from standard input and writes the figures of the best mapping to standard output,
both as JSON (``benchmarks/mappers.py``).
"""

import json
import sys
import time
from pathlib import Path

from accelforge import Spec, set_n_parallel_jobs
from accelforge.frontend.mapper.metrics import Metrics
from accelforge.mapper.FFM.mappings import Mappings

METRICS = {"bytes": Metrics.ENERGY, "energy": Metrics.ENERGY, "cycles": Metrics.LATENCY}


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    # Pictures of mappings need Graphviz, and are not looked at.
    Mappings.render = lambda self, **options: ""
    set_n_parallel_jobs(1)
    path = Path("request.yaml")
    path.write_text(specification(request), encoding="utf-8")
    spec = Spec.from_yaml(path)
    spec.mapper.metrics = METRICS[request["objective"]]
    # With several units, tiles that divide nothing are counted in fractions of blocks.
    spec.mapper.explore_imperfect_temporal_loops = request["unit"]["units"] == 1
    begin = time.process_time()
    result = spec.map_workload_to_arch(print_progress=False)
    seconds = time.process_time() - begin
    row = result.data.iloc[0].to_dict()
    moved = sum(
        float(value)
        for name, value in row.items()
        if "<SEP>action<SEP>MainMemory<SEP>" in name and name.endswith(("read", "write"))
    )
    print(
        json.dumps(
            {
                "bytes": moved / 8,
                "cycles": float(row["Total<SEP>latency"]),
                "energy": float(row["Total<SEP>energy"]),
                "seconds": seconds,
            }
        )
    )


def specification(request: dict) -> str:
    """Return the machine and the workload; energies are of a bit."""
    unit, sizes = request["unit"], request["sizes"]
    memory, buffer, execution = (unit[f"{n}_pj"] for n in ("memory", "buffer", "execution"))
    if request["objective"] == "bytes":
        memory, buffer, execution = 8.0, 0.0, 0.0
    spatial = ""
    if unit["units"] > 1:
        # Sums of several units would be added up in main memory, at no cost and by nothing.
        sums = ["k"] if request["kind"] == "gemm" else ["c", "r", "s"]
        undivided = ", ".join(f'{{expression: "{{{n}}}", operator: "==", value: 1}}' for n in sums)
        reuse = "All" if unit["multicast"] else "Nothing"
        spatial = (
            f"\n    spatial: [{{name: X, fanout: {unit['units']}, may_reuse: {reuse}, "
            f"loop_bounds: [{undivided}]}}]"
        )
    shared = ""
    if unit["shared_bytes"]:
        energy = unit["shared_pj"] if request["objective"] != "bytes" else 0.0
        keep = "may_keep: All" if unit["bypass"] else "keep: All"
        shared = f"""
  - !Memory
    name: Shared
    size: {8 * unit["shared_bytes"]}
    leak_power: 0
    area: 0
    tensors: {{{keep}}}
    actions:
    - {{name: read, energy: {energy / 8}, throughput: inf}}
    - {{name: write, energy: {energy / 8}, throughput: inf}}"""
    text = f"""
arch:
  nodes:
  - !Memory
    name: MainMemory
    size: inf
    leak_power: 0
    area: 0
    tensors: {{keep: ~Intermediates, may_keep: All}}
    actions:
    - {{name: read, energy: {memory / 8}, throughput: {8 * unit["memory_bytes"]}}}
    - {{name: write, energy: {memory / 8}, throughput: {8 * unit["memory_bytes"]}}}
{shared}
  - !Memory
    name: Buffer{spatial}
    size: {8 * unit["buffer_bytes"]}
    leak_power: 0
    area: 0
    tensors: {{keep: All}}
    actions:
    - {{name: read, energy: {buffer / 8}, throughput: inf}}
    - {{name: write, energy: {buffer / 8}, throughput: inf}}
  - !Compute
    name: Unit
    leak_power: 0
    area: 0
    actions:
    - {{name: compute, energy: {execution}, throughput: 1}}
workload:
"""
    loops, bits = request["loops"], {name: 8 * size for name, size in sizes.items()}
    if request["kind"] == "gemm":
        accesses = (
            "    - {name: A, projection: [m, k]}\n"
            "    - {name: B, projection: [k, n]}\n"
            "    - {name: C, projection: [m, n], output: True}\n"
        )
        ranks = {name.upper(): size for name, size in loops.items()}
        shape = ""
    else:
        accesses = (
            "    - {name: A, projection: {C: c, H: p + r, W: q + s}}\n"
            "    - {name: B, projection: [k, c, r, s]}\n"
            "    - {name: C, projection: [k, p, q], output: True}\n"
        )
        ranks = {
            "K": loops["k"], "P": loops["p"], "Q": loops["q"], "C": loops["c"],
            "R": loops["r"], "S": loops["s"],
            "H": loops["p"] + loops["r"] - 1, "W": loops["q"] + loops["s"] - 1,
        }  # fmt: skip
        shape = ""
    sizes_text = ", ".join(f"{name}: {size}" for name, size in ranks.items())
    bits_text = ", ".join(f"{name}: {size}" for name, size in bits.items())
    return text + (
        f"  rank_sizes: {{{sizes_text}}}\n"
        f"  bits_per_value: {{{bits_text}}}\n"
        "  einsums:\n"
        "  - name: Layer\n"
        f"    tensor_accesses:\n{accesses}"
        "    renames: {input: A, weight: B, output: C}\n"
        f"{shape}"
    )


main()

"""One layer mapped by ZigZag; runs in its own environment, which has no cpembed.

Reads a request from standard input and writes the figures of the best mapping to standard output,
both as JSON (``benchmarks/mappers.py``).
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import yaml
from zigzag.api import get_hardware_performance_zigzag

BEYOND = 1_000_000
"""Bits a cycle of what is no bottleneck."""

PORTS = {"read": "r", "write": "w", "read_write": "rw"}
"""Beginning of the name of a port of each type."""


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    objective, unit = request["objective"], request["unit"]
    word = 8 * int(unit["memory_bytes"])
    # An access is of the width of a port, so that the energies of main memory count bytes.
    memory = word / 8
    machine = {
        "name": "unit",
        "memories": {
            "buffer": store(8 * unit["buffer_bytes"], BEYOND, 0, is_shared=False),
            "dram": store(10**12, word, memory, is_shared=True),
        },
        "operational_array": {
            "input_precision": [8, 8],
            "unit_energy": 0,
            "unit_area": 1,
            "dimensions": ["D1"],
            "sizes": [1],
        },
    }
    mapping = [
        {
            "name": "default",
            "spatial_mapping": {"D1": ["K, 1"]},
            "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
        }
    ]
    for name, value in (("machine", machine), ("mapping", mapping), ("layer", [layer(request)])):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    begin = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        energy, latency, _ = get_hardware_performance_zigzag(
            "layer.yaml",
            "machine.yaml",
            "mapping.yaml",
            opt="latency" if objective == "cycles" else "energy",
            dump_folder="out",
            lpf_limit=6,
            loma_show_progress_bar=False,
        )
    seconds = time.process_time() - begin
    # Its latency is the sum of these parts.
    document = json.loads(Path("out/Layer0_complete.json").read_text(encoding="utf-8"))
    figures = {"cycles": float(latency), "bytes": float(energy), "seconds": seconds}
    print(json.dumps({**figures, "parts": document["outputs"]["latency"]}))


def store(size: int, width: int, cost: float, *, is_shared: bool) -> dict:
    """Return a memory of a width in bits and a cost of each access.

    One port serves everything, or each movement of an operand has a port of its own: every access
    takes a port for at least a cycle, however wide the port is.

    Parameters
    ----------
    size : int
        Capacity in bits.
    width : int
        Bits of an access.
    cost : float
        Energy of an access.
    is_shared : bool
        True if one port serves everything.

    Returns
    -------
    dict
        Table of the memory in ZigZag's machine.
    """
    allocation = [f"{operand}, {each}" for operand in ("I1", "I2") for each in ("fh", "tl")]
    allocation += [f"O, {each}" for each in ("fh", "tl", "fl", "th")]
    groups = [allocation] if is_shared else [[each] for each in allocation]
    kinds = ["read_write"] if is_shared else [kind(group[0]) for group in groups]
    ports = [
        {
            "name": f"{PORTS[kinds[number - 1]]}_port_{number}",
            "type": kinds[number - 1],
            "bandwidth_min": width,
            "bandwidth_max": width,
            "allocation": group,
        }
        for number, group in enumerate(groups, start=1)
    ]
    return {
        "size": size,
        "r_cost": cost,
        "w_cost": cost,
        "area": 0,
        "latency": 1,
        "auto_cost_extraction": False,
        "operands": ["I1", "I2", "O"],
        "ports": ports,
        "served_dimensions": ["D1"],
    }


def kind(movement: str) -> str:
    """Return the type of the port of a movement: from above or below it writes, else it reads."""
    return "write" if movement.split(", ")[1].startswith("f") else "read"


def layer(request: dict) -> dict:
    """Return the layer, whose elements are blocks of the unit."""
    loops = request["loops"]
    bits = {name: 8 * size for name, size in request["sizes"].items()}
    values = {
        "id": 0,
        "operand_precision": {"W": bits["B"], "I": bits["A"], "O": bits["C"], "O_final": bits["C"]},
        "operand_source": {"I": 0, "W": 0},
    }
    if request["kind"] == "gemm":
        return {
            **values,
            "operator_type": "Gemm",
            "equation": "O[b][k]+=I[b][c]*W[c][k]",
            "dimension_relations": [],
            "loop_dims": ["B", "K", "C"],
            "loop_sizes": [loops["m"], loops["n"], loops["k"]],
        }
    return {
        **values,
        "operator_type": "Conv",
        "equation": "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
        "dimension_relations": ["ix=1*ox+1*fx", "iy=1*oy+1*fy"],
        "loop_dims": ["B", "K", "C", "OY", "OX", "FY", "FX"],
        "loop_sizes": [1, *(loops[name] for name in ("k", "c", "p", "q", "r", "s"))],
        "pr_loop_dims": ["IX", "IY"],
        "pr_loop_sizes": [loops["q"] + loops["s"] - 1, loops["p"] + loops["r"] - 1],
        "padding": [[0, 0], [0, 0]],
    }


main()

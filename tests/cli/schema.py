"""The documents of ``--json``, as ``docs/reference/json.md`` describes them.

A schema is a type, a tuple of alternatives, a list with the schema of its items, a dict with the
schema of each required field, or a :class:`Map`. Fields may be added to a document, not removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUMBER = (int, float)


@dataclass(frozen=True)
class Map:
    """An object with any keys."""

    values: Any


def assert_matches(document: Any, schema: Any, where: str = "document") -> None:
    if isinstance(schema, dict):
        assert isinstance(document, dict), where
        missing = schema.keys() - document.keys()
        assert not missing, f"{where} lacks {sorted(missing)}"
        for key, part in schema.items():
            assert_matches(document[key], part, f"{where}.{key}")
    elif isinstance(schema, Map):
        assert isinstance(document, dict), where
        for key, value in document.items():
            assert_matches(value, schema.values, f"{where}.{key}")
    elif isinstance(schema, list):
        assert isinstance(document, list), where
        for position, item in enumerate(document):
            assert_matches(item, schema[0], f"{where}[{position}]")
    else:
        assert isinstance(document, schema), f"{where}: {document!r} is not {schema}"
        # JSON's true is no number.
        assert isinstance(document, bool) == (schema is bool), f"{where}: {document!r}"


WORKLOAD = {"name": str, "axes": Map(int), "macs": int}

EMBEDDING = {
    "rank": int,
    "id": str,
    "family": Map([str]),
    "axes": Map([{"axis": str, "count": int, "stride": int}]),
    "operands": Map(str),
    "mac_overhead": NUMBER,
    "data_overhead": NUMBER,
    "utilisation": NUMBER,
    "score": NUMBER,
    "footprint": Map(int),
    "rewrites": [{"name": str, "operand": str, "axes": [str]}],
    "proven": bool,
}

SOLVE = {
    "workload": WORKLOAD,
    "target": str,
    "instruction": str,
    "constraints": str,
    "seed": int,
    "status": str,
    "complete": bool,
    "top_proven": bool,
    "count": int,
    "families": int,
    "seconds": {"model": NUMBER, "solve": NUMBER},
    "search": {
        "formulation": (str, type(None)),
        "branches": int,
        "conflicts": int,
        "asset": (str, type(None)),
        "assets": [{"name": str, "status": str, "branches": int, "conflicts": int}],
    },
    "embeddings": [EMBEDDING],
}

RUN = {
    "workload": WORKLOAD,
    "target": str,
    "constraints": str,
    "embedding": str,
    "rank": int,
    "seed": int,
    "backend": str,
    "provenance": str,
    "time": {
        "provenance": str,
        "us": (*NUMBER, type(None)),
        "cycles": (int, type(None)),
        "gops": (*NUMBER, type(None)),
        "of_instruction": bool,
    },
    "verified": bool,
    "special_values": str,
    "spreads_nan": bool,
    "max_error": NUMBER,
    "packing_us": NUMBER,
    "unpacking_us": NUMBER,
    "packed_ahead": [str],
}

QUANTILES = {"median": NUMBER, "p10": NUMBER, "p90": NUMBER}

MODULE = {"busy": int, "stalled": int, "idle": int}
SIMULATED = {
    **RUN,
    "tolerance": NUMBER,
    "output": {"form": str, "dtype": str},
    "simulated_cycles": int,
    "clock_mhz": NUMBER,
    "simulated_us": NUMBER,
    "simulated_gops": NUMBER,
    "gemm_utilisation": NUMBER,
    "lower_bound_cycles": int,
    "lower_bound_ratio": NUMBER,
    "busiest_module_cycles": int,
    "busiest_module_ratio": NUMBER,
    "bounds": {"gemm": int, "compute": int, "read": int, "write": int},
    "bytes": {"FETCH": int, "UOP": int, "WGT": int, "INP": int, "ACC": int, "OUT": int},
    "modules": {"load": MODULE, "compute": MODULE, "store": MODULE},
    "memory": Map(int),
    "schedule": {
        "tiles": Map(int),
        "threads": int,
        "thread_loop": (str, type(None)),
        "slots": {"inp": int, "wgt": int},
    },
    "instructions": int,
    "micro_ops": int,
    "noisy": bool,
    "seconds": Map(NUMBER),
}
"""What is simulated and what is measured have names of their own: there is no ``latency_us``."""

TUNED = {
    "workload": {"expression": str, "axes": Map(int)},
    "target": str,
    "unit": str,
    "provenance": str,
    "constraints": str,
    "seed": int,
    "candidates": int,
    "trials": int,
    "measured": int,
    "kept": int,
    "stopped": bool,
    "speedup": NUMBER,
    "seconds": NUMBER,
    "database": str,
}
"""What ``tune`` says of simulated and of timed targets alike."""

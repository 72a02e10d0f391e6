"""Documents of explorations for tests of their pages."""

from __future__ import annotations

from typing import Any

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></script><svg onload=alert(1)>",
    "javascript:alert(1)",
    "\x00\x1b[31m\u202e",
]
"""Texts that break out of a page where they can."""


def layer(index: int, cycles: float, text: str = "x ← p:8") -> dict[str, Any]:
    return {
        "index": index,
        "cycles": cycles,
        "energy_pj": 12.5,
        "provenance": "estimated",
        "choice": "0123456789ab",
        "software": text,
        "counts": {"executions": 4.0},
        "details": {
            "embedding": "0123456789ab",
            "mapping": text,
            "constraints": "boxes",
            "executions": 1234,
            "utilisation": 0.5,
            "us": cycles / 100,
            "packing_us": {"A": 1.5},
            "bound": "read from dram",
            "exact": False,
            "levels": [
                {"memory": "dram", "read_bytes": 98765.0, "written_bytes": 4321.0, "cycles": 7.0}
            ],
            "tiling": [
                {"memories": ["buffer"], "tile": {"p.o": 3}, "order": ["p.o", "q.o"], "units": 2}
            ],
        },
    }


def point(number: int, time: float, area: float, text: str = "x ← p:8") -> dict[str, Any]:
    left_out = [{"index": 1, "layer": f"layer 1 {text}", "reason": f"no axis feeds z {text}"}]
    return {
        "number": number,
        "parameters": {"instruction.axes.x": number, "operands.A.tile": text},
        "objectives": {"time_us": time, "area_mm2": area},
        "clock_mhz": 100.0,
        "area_um2": None if number == 2 else area * 1e6,
        "beyond": "area=2mm2" if area > 2 else None,
        "layers": [layer(0, 100 * time / 3, text)],
        "left_out": left_out if number % 2 else [],
    }


def document(text: str = "x ← p:8", **members: Any) -> dict[str, Any]:
    """Return a document whose texts are, or contain, one text."""
    return {
        "space": {
            "name": f"npu {text}",
            "description": text,
            "source": None,
            "family": "described",
            "combinations": 8,
            "parameters": {"instruction.axes.x": [1, 2, 3], "operands.A.tile": [text]},
            "fixed": {},
            "derived": {"machines.soc.compute.cycles": text},
            "where": [text],
        },
        "suite": text,
        "layers": [
            {"index": 0, "layer": f"layer 0 {text}", "count": 3},
            {"index": 1, "layer": f"layer 1 {text}", "count": 1},
        ],
        "method": "exact",
        "objectives": ["time_us", "area_mm2"],
        "limits": {"area_mm2": 2.0},
        "status": "proven",
        "front": [1, 2],
        "rows": [point(1, 30.0, 0.5, text), point(2, 1234567.0, 0.25, text),
                 point(3, 50.0, 0.75, text), point(4, 20.0, 3.0, text)],
        **members,
    }  # fmt: skip

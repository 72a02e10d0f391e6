"""Timeline of a network's operators in Chrome's trace format (chrome://tracing, Perfetto).

Operators and conversions of layouts lie one behind the other, as long as each takes: the median of
its calls, or the estimate in a plan. On a target that counts cycles, a microsecond of the timeline
is one cycle. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PROCESS = 1
_TRACKS = {"product": 1, "operator": 2, "conversion": 3}
"""Rows of the timeline by category: products, operators between them, copies into other layouts."""


def chrome_trace(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeline of a document of ``cpembed network``.

    Parameters
    ----------
    document : mapping
        Document of the command, of a run or of a plan.

    Returns
    -------
    dict
        Document of the trace format; times in microseconds.
    """
    events: list[dict[str, Any]] = []
    start = 0.0
    for category, name, duration, arguments in _spans(document):
        if duration is None:
            continue
        events.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": start,
                "dur": duration,
                "pid": _PROCESS,
                "tid": _TRACKS[category],
                "args": arguments,
            }
        )
        start += duration
    return {
        "traceEvents": [*_labels(document), *events],
        "displayTimeUnit": "ns",
        "otherData": {
            "network": document["network"],
            "target": document["target"],
            "threads": document["threads"],
            "unit": document.get("unit", "us"),
            "provenance": document["provenance"],
        },
    }


def _labels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the names of the process and of its rows."""
    text = f"{document['network']} on {document['target']}, {document['provenance']}"
    yield {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": text}}
    for category, track in _TRACKS.items():
        yield {
            "name": "thread_name",
            "ph": "M",
            "pid": _PROCESS,
            "tid": track,
            "args": {"name": f"{category}s"},
        }


def _spans(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, str, float | None, dict[str, Any]]]:
    """Yield category, name, microseconds and details of each step, in the order of execution."""
    tensors, unit = document["tensors"], document.get("unit", "us")
    written = {name for operator in document["operators"] for name in operator["outputs"]}
    for name, tensor in tensors.items():
        # The network's inputs are converted before anything reads them.
        if name not in written:
            yield from _conversions(name, tensor)
    for operator in document["operators"]:
        measured = operator.get("measured_us" if unit == "us" else unit)
        duration = operator["predicted_us"] if measured is None else measured
        details = {
            "layouts": operator.get("layouts", []),
            "predicted_us": operator["predicted_us"],
            "measured_us" if unit == "us" else unit: measured,
        }
        if operator["workload"] is not None:
            details |= {key: operator[key] for key in ("workload", "macs", "embedding", "reason")}
            details["on"] = operator["embedded_on"] or "portable code"
            if duration and unit == "us":
                # A product inside a loop takes its time in all steps.
                executed = operator["macs"] * operator.get("steps", 1)
                details["gmac_per_s"] = executed / duration / 1e3
        category = "operator" if operator["workload"] is None else "product"
        yield category, operator["name"], duration, details
        for name in operator["outputs"]:
            yield from _conversions(name, tensors.get(name, {}))


def _conversions(
    name: str, tensor: Mapping[str, Any]
) -> Iterator[tuple[str, str, float | None, dict[str, Any]]]:
    for conversion in tensor.get("conversions", ()):
        details = {"shape": tensor["shape"], "dtype": tensor["dtype"], "from": tensor["layout"]}
        yield "conversion", f"{name} to {conversion['to']}", conversion["us"], details

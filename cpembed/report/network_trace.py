"""Timeline of a network's operators in Chrome's trace format (chrome://tracing, Perfetto).

Operators and conversions of layouts lie one behind the other, as long as each takes: the median of
its calls, or the estimate in a plan. On a target that counts cycles, a microsecond of the timeline
is one cycle. Of a network whose operators run elsewhere in part, the libraries and these operators
follow each other in the order in which they run. Format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_PROCESS = 1
_TRACKS = {"product": 1, "operator": 2, "conversion": 3, "fallback": 4}
"""Rows of the timeline by category: products, operators between them, copies into other layouts,
operators that run elsewhere."""


def chrome_trace(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the timeline of a document of ``cpembed network``.

    Parameters
    ----------
    document : mapping
        Document of the command, of a run (also one with ``--fallback``) or of a plan.

    Returns
    -------
    dict
        Document of the trace format; times in microseconds.
    """
    events: list[dict[str, Any]] = []
    start = 0.0
    # The libraries of a network with operators that run elsewhere have the same options.
    libraries: Sequence[Mapping[str, Any]] = document.get("parts", [document])
    common: dict[str, Any] = dict(libraries[0]) if libraries else {}
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
        "traceEvents": [*_labels(document, common.get("provenance", "measured")), *events],
        "displayTimeUnit": "ns",
        "otherData": {
            "network": document["network"],
            "target": document["target"],
            "threads": common.get("threads"),
            "unit": common.get("unit", "us"),
            "provenance": common.get("provenance", "measured"),
        },
    }


def _labels(document: Mapping[str, Any], provenance: str) -> Iterator[dict[str, Any]]:
    """Yield the names of the process and of its rows."""
    text = f"{document['network']} on {document['target']}, {provenance}"
    yield {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": text}}
    for category, track in _TRACKS.items():
        if category == "fallback" and "parts" not in document:
            continue
        yield {
            "name": "thread_name",
            "ph": "M",
            "pid": _PROCESS,
            "tid": track,
            "args": {"name": "run elsewhere" if category == "fallback" else f"{category}s"},
        }


def _spans(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, str, float | None, dict[str, Any]]]:
    """Yield category, name, microseconds and details of each step, in the order of execution."""
    if "parts" in document:
        yield from _part_spans(document)
        return
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


def _part_spans(
    document: Mapping[str, Any],
) -> Iterator[tuple[str, str, float | None, dict[str, Any]]]:
    """Yield the steps of libraries and of the operators that run elsewhere between them."""
    for number in range(len(document["parts"]) + 1):
        for entry in document["fallback"]:
            if entry["after_parts"] == number:
                yield "fallback", entry["operator"], entry["measured_us"], {"kind": entry["kind"]}
        if number < len(document["parts"]):
            yield from _spans(document["parts"][number])


def _conversions(
    name: str, tensor: Mapping[str, Any]
) -> Iterator[tuple[str, str, float | None, dict[str, Any]]]:
    for conversion in tensor.get("conversions", ()):
        details = {"shape": tensor["shape"], "dtype": tensor["dtype"], "from": tensor["layout"]}
        yield "conversion", f"{name} to {conversion['to']}", conversion["us"], details

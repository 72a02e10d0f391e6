"""What was measured, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.there.timing import Samples, geometric_mean

LIBRARIES = ("cuDNN", "cuBLAS", "Triton", "dlight as shipped", "dlight repaired")
FIXED = ("im2col", "fuse_hw")


def roles(variant: Mapping[str, Any]) -> list[str]:
    return [variant["name"], *variant["also"]]


def best(entry: Mapping[str, Any], wanted: Callable[[str], bool]) -> str | None:
    """The fastest kernel of the pack that was timed and has such a role."""
    found = [
        variant["name"]
        for variant in entry["variants"]
        if variant["name"] in entry["times"] and any(wanted(role) for role in roles(variant))
    ]
    return min(found, key=lambda name: entry["times"][name]["us"], default=None)


def ratio(entry: Mapping[str, Any], one: str | None, other: str | None) -> float | None:
    """The time of one as a multiple of the other's, round by round."""
    times = entry["times"]
    if one is None or other is None or not {one, other} <= set(times):
        return None
    return Samples({name: times[name]["samples"] for name in (one, other)}).ratio(one, other)


def figures(entry: Mapping[str, Any], ceilings: Mapping[str, float]) -> dict[str, Any]:
    """Of a layer: its best kernel, the first that the model chose, and others as multiples of the
    best; None for what was not timed. ``of_ceiling``: of the multiply-adds that the device reached
    on operands in registers.
    """
    ours = best(entry, lambda _: True)
    chosen = best(entry, lambda role: role == "chosen 1")
    found: dict[str, Any] = {
        "name": entry["name"],
        "suite": entry["suite"],
        "best": ours,
        "best_us": entry["times"][ours]["us"] if ours else None,
        "chosen": ratio(entry, chosen, ours),
        **{name: ratio(entry, name, ours) for name in LIBRARIES},
        **{
            name: ratio(entry, best(entry, lambda role, name=name: role == name), ours)
            for name in FIXED
        },
        "of_ceiling": None,
    }
    ceiling = ceilings.get(f"{entry['target']}_macs_per_s")
    if ours and ceiling:
        found["of_ceiling"] = entry["macs"] / (found["best_us"] * 1e-6) / ceiling
    return found


def mean(rows: Iterable[Mapping[str, Any]], column: str) -> tuple[float | None, int]:
    """The geometric mean of a column, and of how many layers."""
    values = [row[column] for row in rows if row[column] is not None]
    return (geometric_mean(values) if values else None), len(values)


_COLUMNS = (
    ("chosen", "model's choice"),
    *((name, name) for name in LIBRARIES),
    *((name, f"fixed {name}") for name in FIXED),
)


_EXPLAINED = (
    "Times are medians in microseconds, with the second level cache emptied before each call; "
    "weights are packed ahead, images are not. The other columns are times as multiples of the "
    "best kernel's, medians of ratios round by round: above 1, the kernel is faster. *Model's "
    "choice* is the schedule that the model ranks first."
)


def markdown(document: Mapping[str, Any]) -> str:
    """The whole report."""
    device, ceilings = document["device"], document["device"]["ceilings"]
    lines = [f"# Tensor Core kernels on {device['device']}", "", *_device_lines(device), ""]
    rows = [figures(entry, ceilings) for entry in document["layers"]]
    lines += [_EXPLAINED, ""]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        lines += _table(suite, [row for row in rows if row["suite"] == suite])
    return "\n".join([*lines, *_troubles(document["layers"])]) + "\n"


def _device_lines(device: Mapping[str, Any]) -> list[str]:
    ceilings = device["ceilings"]
    capability = ".".join(map(str, device["capability"]))
    measured = "- measured in the same run:"
    found = [
        f"- compute capability {capability}, {device['multiprocessors']} multiprocessors",
        (
            f"- driver {device['driver']} (CUDA {device['cuda_driver']}), "
            f"torch {device['torch']} (CUDA {device['cuda_of_torch']}), cuDNN {device['cudnn']}, "
            f"Triton {device['triton']}, Python {device['python']}"
        ),
        (
            f"{measured} copy {ceilings['copy_bytes_per_s'] / 1e9:,.0f} GB/s, nothing between two "
            f"events {ceilings['nothing_us']:.1f} us"
        ),
    ]
    found += [
        f"{measured} {name.removesuffix('_macs_per_s')} "
        f"{2 * value / 1e12:,.0f} tera-operations a second on operands in registers"
        for name, value in ceilings.items()
        if name.endswith("_macs_per_s")
    ]
    return found


def _table(suite: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    used = [(key, title) for key, title in _COLUMNS if any(row[key] is not None for row in rows)]
    titles = ["layer", "best", "us", *(title for _, title in used), "of ceiling"]
    lines = [f"## {suite}", "", f"| {' | '.join(titles)} |"]
    lines += ["| --- | --- |" + " ---: |" * (len(titles) - 2)]
    for row in rows:
        cells = [row["name"], row["best"] or "none", number(row["best_us"], 1)]
        cells += [number(row[key], 2) for key, _ in used]
        cells += [number(row["of_ceiling"] and 100 * row["of_ceiling"], 0, " %")]
        lines.append(f"| {' | '.join(cells)} |")
    means = [mean(rows, key) for key, _ in used]
    cells = ["geometric mean (layers)", "", ""]
    cells += [f"{number(value, 2)} ({count})" for value, count in means]
    return [*lines, f"| {' | '.join([*cells, ''])} |", ""]


def number(value: float | None, digits: int, unit: str = "") -> str:
    """
    >>> number(1234.56, 1), number(None, 2)
    ('1,234.6', '')
    """
    return "" if value is None else f"{value:,.{digits}f}{unit}"


def _troubles(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for entry in layers:
        for kind, words in (("wrong", "a wrong result"), ("failed", "failed")):
            found += [
                f"- {entry['name']}, {name}: {words}: {reason}"
                for name, reason in entry[kind].items()
            ]
        if entry["trouble"]:
            found.append(f"- {entry['name']}: {entry['trouble']}")
        found += [
            f"- {entry['name']}, {rule['name']}: not packed: {rule['failed']}"
            for rule in entry["rules"]
            if "failed" in rule
        ]
    return ["## What was not timed", "", *(found or ["Everything was."])]

"""The measurements as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cpembed.targets.cuda.remote.timing import Samples

LIBRARIES = ("cuDNN", "cuBLAS", "Triton", "dlight as shipped", "dlight repaired")
FIXED = ("im2col", "fuse_hw")


def roles(variant: Mapping[str, Any]) -> list[str]:
    """Return the roles of a kernel."""
    return [variant["name"], *variant["also"]]


def best(entry: Mapping[str, Any], has_role: Callable[[str], bool]) -> str | None:
    """Return the fastest kernel of the pack that was timed and has such a role."""
    names = [
        variant["name"]
        for variant in entry["variants"]
        if variant["name"] in entry["times"] and any(has_role(role) for role in roles(variant))
    ]
    return min(names, key=lambda name: entry["times"][name]["us"], default=None)


def ratio(entry: Mapping[str, Any], name: str | None, base: str | None) -> float | None:
    """Return the time of one as a multiple of another's, round by round.

    Parameters
    ----------
    entry : mapping
    name, base : str or None
        Implementations.
    """
    times = entry["times"]
    if name is None or base is None or not {name, base} <= set(times):
        return None
    return Samples({key: times[key]["samples"] for key in (name, base)}).ratio(name, base)


def figures(entry: Mapping[str, Any], ceilings: Mapping[str, float]) -> dict[str, Any]:
    """Return the best kernel of a layer, and others as multiples of the best.

    Among the others is the first that the model chose; None for what was not timed. ``of_ceiling``:
    share of the multiply-adds that the device reached on operands in registers.
    """
    fastest = best(entry, lambda _: True)
    first_choice = best(entry, lambda role: role == "chosen 1")
    row: dict[str, Any] = {
        "name": entry["name"],
        "suite": entry["suite"],
        "best": fastest,
        "best_us": entry["times"][fastest]["us"] if fastest else None,
        "chosen": ratio(entry, first_choice, fastest),
        **{name: ratio(entry, name, fastest) for name in LIBRARIES},
        **{
            name: ratio(entry, best(entry, lambda role, name=name: role == name), fastest)
            for name in FIXED
        },
        "estimate": None,
        "of_ceiling": None,
    }
    if fastest:
        (estimated,) = (v["estimated_us"] for v in entry["variants"] if v["name"] == fastest)
        row["estimate"] = estimated / row["best_us"]
    ceiling = ceilings.get(f"{entry['target']}_macs_per_s")
    if fastest and ceiling:
        row["of_ceiling"] = entry["macs"] / (row["best_us"] * 1e-6) / ceiling
    return row


def mean(rows: Iterable[Mapping[str, Any]], column: str) -> tuple[float | None, int]:
    """Return the geometric mean of a column, and the number of layers in it."""
    values = [row[column] for row in rows if row[column] is not None]
    return (statistics.geometric_mean(values) if values else None), len(values)


_COLUMNS = (
    ("chosen", "model's choice"),
    ("estimate", "estimate"),
    *((name, name) for name in LIBRARIES),
    *((name, f"fixed {name}") for name in FIXED),
)


_EXPLAINED = (
    "Times are medians in microseconds, with the second level cache emptied before each call; "
    "weights are packed ahead, images are not. The other columns are times as multiples of the "
    "best kernel's, medians of ratios round by round: above 1, the kernel is faster. *Model's "
    "choice* is the schedule that the model ranks first; *estimate* is the model's time of the "
    "best kernel."
)


def markdown(document: Mapping[str, Any]) -> str:
    """Return the report."""
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
    versions = [
        f"{title} {device[field]}"
        for field, title in (
            ("driver_version", "driver"), ("cuda_driver", "CUDA"), ("torch", "torch"),
            ("cudnn", "cuDNN"), ("triton", "Triton"), ("python", "Python"),
        )
        if device.get(field) is not None
    ]  # fmt: skip
    lines = [
        (
            f"- compute capability {capability}, {device['multiprocessors']} multiprocessors, "
            f"up to {device['clock_mhz']:.0f} MHz"
        ),
        f"- {', '.join(versions)}",
        (
            f"{measured} copy {ceilings['copy_bytes_per_s'] / 1e9:,.0f} GB/s, nothing between two "
            f"events {ceilings['nothing_us']:.1f} us"
        ),
    ]
    lines += [
        f"{measured} {name.removesuffix('_macs_per_s')} "
        f"{2 * value / 1e12:,.0f} tera-operations a second on operands in registers"
        for name, value in ceilings.items()
        if name.endswith("_macs_per_s") and value
    ]
    return lines


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
    """Return a number as text; nothing for None.

    >>> number(1234.56, 1), number(None, 2)
    ('1,234.6', '')

    Parameters
    ----------
    value : float or None
    digits : int
        Number of decimals.
    unit : str
        Text behind it.
    """
    return "" if value is None else f"{value:,.{digits}f}{unit}"


def _troubles(layers: Sequence[Mapping[str, Any]]) -> list[str]:
    lines: list[str] = []
    for entry in layers:
        for kind, verdict in (("wrong", "a wrong result"), ("failed", "failed")):
            lines += [
                f"- {entry['name']}, {name}: {verdict}: {reason}"
                for name, reason in entry[kind].items()
            ]
        if entry["trouble"]:
            lines.append(f"- {entry['name']}: {entry['trouble']}")
        lines += [
            f"- {entry['name']}, {rule['name']}: not packed: {rule['failed']}"
            for rule in entry["rules"]
            if "failed" in rule
        ]
    return ["## What was not timed", "", *(lines or ["Everything was."])]

"""Layers on this machine's CPU beside other libraries, for the figures of papers on CPUs.

The papers measured Intel's VNNI. Any x86 processor repeats their figures with the widest
instruction that multiplies bytes there, which the tables name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.documents import Row
from cpembed.driver.named import hardware_spec
from cpembed.targets.x86.features import lacking, missing_features
from experiments.common import geometric_mean

BYTE_TARGETS = ("avx512_vnni", "avx_vnni", "avx2_int7")
"""Targets that multiply bytes, the papers' own first. The last one limits a factor to seven bits,
since without VNNI oneDNN adds pairs of products in 16 bits, which saturate."""

PAPER_TARGET = BYTE_TARGETS[0]

INSTALL = {"onednn": ("torch",), "tvm": ("xgboost", "cloudpickle", "psutil")}
"""Packages that a library's comparison needs."""
FEATURES = {"onednn": (), "tvm": ("avx512f", "avx512_vnni")}
"""Features of the processor that a library's comparison needs."""

LABELS = {"onednn": "oneDNN", "tvm": "MetaSchedule"}


def byte_target() -> str | None:
    """Return the first of :data:`BYTE_TARGETS` that this processor executes; None without any."""
    available = (name for name in BYTE_TARGETS if not missing_features(hardware_spec(name)))
    return next(available, None)


def missing_target() -> str:
    """Return what this machine lacks to measure; empty if nothing."""
    if byte_target() is not None:
        return ""
    return f"an x86 processor with the instructions of {', '.join(BYTE_TARGETS)}"


def missing_library(name: str) -> str:
    """Return what this machine lacks to compare with a library; empty if nothing."""
    features = lacking(FEATURES[name])
    packages = [package for package in INSTALL[name] if find_spec(package) is None]
    if packages:
        features = (*features, f"{' and '.join(packages)} (pip install 'cpembed[bench]')")
    return ", ".join(features)


def measured_layer(
    suite: str, index: int, target: str, libraries: Iterable[str], *, layout: str = "NHWC"
) -> Row:
    """Return a row of ``cpembed bench`` with the libraries that this machine has.

    Parameters
    ----------
    suite : str
        Suite by name, or a table of layers.
    index : int
        Number of the layer in the suite.
    target : str
        Target by name.
    libraries : iterable of str
        Libraries of :data:`LABELS`; those that are missing are in the row with the reason.
    layout : str
        Layout of the image and the result.

    Returns
    -------
    Row
        The figures of :func:`layer_row`.

    Raises
    ------
    RuntimeError
        If the layer has no times; the message says why.
    """
    reasons = {name: missing_library(name) for name in libraries}
    present = [name for name, reason in reasons.items() if not reason]
    command = [
        *(sys.executable, "-m", "cpembed", "bench", suite, "--layers", str(index)),
        *("--target", target, "--layout", layout, "--untuned", "--json"),
        *(option for name in present for option in ("--baseline", name)),
    ]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not process.stdout.startswith("{"):
        raise RuntimeError(f"cpembed bench ended with code {process.returncode}")
    row = layer_row(json.loads(process.stdout), present)
    for name, reason in reasons.items():
        if reason:
            row["libraries"][name] = {"missing": reason}
    return row


def layer_row(document: Mapping[str, Any], libraries: Sequence[str]) -> Row:
    """Return the figures that are stored of a document of ``bench`` with one layer.

    Times are microseconds: ours of the contraction on packed operands, a library's of its own
    computation where it has a profile (``primitive``), otherwise of a whole call; ``ours_us`` is
    ours in the library's rounds, whose ratios are the library's time over ours, without and with
    packing the image and unpacking the result.
    """
    (row,) = document["rows"]
    run = row.get("run") or {}
    if not run.get("latency_us"):
        reason = row.get("error") or ", ".join(run.get("missing") or ()) or "it has no kernel"
        raise RuntimeError(f"{row['label']} has no time on {document['target']}: {reason}")
    compared: dict[str, Row] = {}
    for name in libraries:
        figures = run["baselines"][name]
        versions = document["baselines"][name]
        compared[name] = {**_library_row(figures), "versions": versions}
    return {
        "layer": row["label"],
        "target": document["target"],
        "macs": row["macs"],
        "verified": run["verified"],
        "mapping": (run.get("chosen") or row["best"]["embedding"])["mapping"],
        "us": run["latency_us"]["median"],
        "noisy": run["noisy"],
        "libraries": compared,
    }


def _library_row(figures: Mapping[str, Any]) -> Row:
    if "missing" in figures:
        return {"missing": figures["missing"]}
    timed = "primitive" if figures.get("primitive_us") else "call"
    return {
        "timed": timed,
        "us": figures[f"{timed}_us"]["median"],
        "ours_us": figures["ours_us"]["median"],
        "ratio": figures[f"{timed}_ratio"]["median"],
        "ratio_with_packing": figures[f"{timed}_ratio_with_packing"]["median"],
        "form": figures.get("form"),
        "noisy": bool(figures.get("noisy")),
    }


def ratio(row: Row, library: str, *, packing: bool = False) -> float | None:
    """Return a library's time over ours; None if it was not compared."""
    return row["libraries"][library].get("ratio_with_packing" if packing else "ratio")


def comparison_head(library: str) -> list[str]:
    """Return the columns of :func:`comparison_cells`."""
    label = LABELS[library]
    return [f"{label} us", "ours us", f"{label}'s time over ours"]


def comparison_cells(row: Row, library: str) -> list[str]:
    """Return a library's time, ours in the same rounds, and the ratio, for a table.

    A * marks a disturbed ratio. Without a comparison there is our time alone.
    """
    figures = row["libraries"][library]
    if "missing" in figures:
        return ["—", f"{row['us']:,.1f}", "—"]
    disturbed = "*" if figures["noisy"] else ""
    times = [f"{figures[name]:,.1f}" for name in ("us", "ours_us")]
    return [*times, f"{figures['ratio']:.2f}{disturbed}"]


def mean_line(rows: Sequence[Row], library: str, stated: str) -> str:
    """Return the geometric mean over the layers that were compared, and the paper's own words."""
    ratios = [value for row in rows if (value := ratio(row, library)) is not None]
    label = LABELS[library]
    if not ratios:
        return f"- {label}: not compared; {stated}."
    return (
        f"- {label}'s time over ours: geometric mean {geometric_mean(ratios):.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} of {len(rows)} layers; {stated}."
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what the rows of a table were measured with, and why libraries are missing.

    A target other than the papers' is named as such: its figures are not those of VNNI.
    """
    lines: list[str] = []
    for target in dict.fromkeys(row["target"] for row in rows):
        keys = ", ".join(row["key"] for row in rows if row["target"] == target)
        remark = "" if target == PAPER_TARGET else f": not {PAPER_TARGET}, the paper's"
        lines.append(f"- measured with `{target}`{remark}; rows {keys}")
    versions: dict[str, None] = {}
    missing: dict[str, list[str]] = {}
    for row in rows:
        for name, figures in row["libraries"].items():
            if "missing" in figures:
                missing.setdefault(f"{LABELS[name]}: {figures['missing']}", []).append(row["key"])
            numbers = (figures.get("versions") or {}).items()
            if numbers:
                text = ", ".join(f"{part} {number}" for part, number in numbers if number)
                versions[f"{LABELS[name]} timed by {figures['timed']}: {text}"] = None
    lines += [f"- {line}" for line in versions]
    lines += [
        f"- not compared with {text}; rows {', '.join(keys)}" for text, keys in missing.items()
    ]
    wrong = [row["key"] for row in rows if not row["verified"]]
    if wrong:
        lines.append(f"- **wrong results** in rows {', '.join(wrong)}")
    return lines

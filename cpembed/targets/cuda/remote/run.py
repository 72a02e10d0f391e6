"""Check, then time, the kernels of this pack on this machine's GPU: run.py --help.

Needs Python 3.10 and the CUDA driver; with torch, cuDNN and cuBLAS are timed beside the kernels.
The results are written into a folder after each layer; the exit status is 1 if a kernel is wrong or
fails, or the device cannot be used.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpembed.targets.cuda.remote.conversation import PATIENCE, Conversation
from cpembed.targets.cuda.remote.report import markdown

FORMAT = 2

ROOT = Path(__file__).resolve().parent

_LAYER_FIELDS = (
    "suite", "name", "words", "target", "machine", "kind", "macs", "bytes", "epilogue",
    "storing", "constraints", "variants", "rules",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    pack = json.loads((options.pack / "pack.json").read_text(encoding="utf-8"))
    if pack["format"] != FORMAT:
        print(f"error: a pack of format {pack['format']}, not {FORMAT}", file=sys.stderr)
        return 1
    layers = selected_layers(options.pack, pack["layers"], options.only)
    if not layers:
        print(f"error: no layer of the pack has {options.only!r} in its name", file=sys.stderr)
        return 1
    worker_file = str(Path(__file__).with_name("worker.py"))
    command = [sys.executable, worker_file, str(options.pack), str(options.device)]
    document: dict[str, Any] = {
        "format": FORMAT,
        "pack": pack["packed"],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "layers": [],
    }
    with Conversation([*command, str(options.seconds)], options.patience) as worker:
        try:
            document["device"] = worker.device() | host_facts(options.device)
        except (RuntimeError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        for number, layer in enumerate(layers, start=1):
            outcome = worker.layer(layer["slug"])
            entry = {name: layer[name] for name in _LAYER_FIELDS} | asdict(outcome)
            document["layers"].append(entry)
            write(options.output, document)
            print(f"{number}/{len(layers)} {summary_line(entry)}", flush=True)
    bad = sum(len(entry["wrong"]) + len(entry["failed"]) for entry in document["layers"])
    print(f"{options.output}/results.md; {bad} kernels wrong or failed")
    return 1 if bad else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("run.py", description=(__doc__ or "").split(":", 1)[0])
    parser.add_argument("--only", help="layers whose name contains this")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (0)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing, each layer (2)")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        help=f"seconds without an answer after which a kernel is given up ({PATIENCE:g})",
    )
    parser.add_argument("--output", type=Path, help="folder of the results (results)")
    parser.add_argument("--pack", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.output = options.output or options.pack / "results"
    return options


def host_facts(device: int) -> dict[str, Any]:
    """Return versions and clocks that the driver's functions do not tell.

    Parameters
    ----------
    device : int
        Number of the GPU.
    """
    facts: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    fields = ("driver_version", "clocks.max.sm", "clocks.sm", "clocks.mem", "power.limit")
    for field in fields:
        command = ["nvidia-smi", "-i", str(device), f"--query-gpu={field}", "--format=csv,noheader"]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError):
            facts[field] = None
            continue
        facts[field] = process.stdout.strip() or None
    return facts


def selected_layers(root: Path, slugs: list[str], only: str | None) -> list[dict[str, Any]]:
    """Return the documents of the layers of a pack whose names contain a text.

    Parameters
    ----------
    root : Path
        Folder of the pack.
    slugs : list of str
        Names of its layers in files.
    only : str or None
        The text; None for all layers.
    """
    layers: list[dict[str, Any]] = []
    for slug in slugs:
        path = root / "layers" / slug / "layer.json"
        layer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if only is None or only in slug or only in layer["name"]:
            layers.append(layer)
    return layers


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write the results, after every layer, so that they stay when a run is cut short."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("results.json", json.dumps(document, indent=1) + "\n"),
        ("results.md", markdown(document)),
    ):
        draft = folder / f".{name}.part"
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / name)


def summary_line(entry: dict[str, Any]) -> str:
    """Return a layer as a line.

    >>> entry = {"name": "unit16:3", "times": {}, "wrong": {"im2col": "off"}, "failed": {}}
    >>> summary_line(entry | {"trouble": None})
    'unit16:3: wrong: im2col'
    """
    times = sorted(entry["times"].items(), key=lambda item: item[1]["us"])
    parts = [", ".join(f"{name} {time['us']:.1f} us" for name, time in times)] if times else []
    parts += [f"{kind}: {', '.join(entry[kind])}" for kind in ("wrong", "failed") if entry[kind]]
    parts += [entry["trouble"]] if entry["trouble"] else []
    return f"{entry['name']}: {'; '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())

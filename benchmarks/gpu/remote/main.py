"""Check, then time, the kernels of a pack on this machine's GPU."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.remote.conversation import PATIENCE, Conversation
from benchmarks.gpu.remote.report import markdown

FORMAT = 1

ROOT = Path(__file__).resolve().parents[3]

_LAYER_FIELDS = ("suite", "name", "words", "target", "kind", "macs", "output", "variants", "rules")


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
    command = [sys.executable, "-c", _WORKER, str(options.pack), str(options.device)]
    document: dict[str, Any] = {
        "pack": pack["packed"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "layers": [],
    }
    with Conversation([*command, str(options.seconds)], options.patience) as worker:
        try:
            document["device"] = worker.device()
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


_WORKER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from benchmarks.gpu.remote.worker import main; sys.exit(main(sys.argv[1:]))"
)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("run.py", description=__doc__)
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
        path = root / "layers" / f"{slug}.json"
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

"""Files of a network that a person takes to the machine: C, constants, and manifests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpembed.accelerator.machine_code import save
from cpembed.accelerator.network_code import network_code
from cpembed.accelerator.network_run import NetworkRun
from cpembed.accelerator.network_steps import AcceleratorNetwork
from cpembed.errors import LoweringError
from cpembed.files import make_folder, write_whole


def save_network(
    network: AcceleratorNetwork,
    folder: Path,
    document: Mapping[str, Any],
    run: NetworkRun | None = None,
) -> None:
    """Write a network in C, each program by itself, and a manifest with every number.

    ``network.c``, ``network.h`` and ``constants.bin`` are the whole network
    (:mod:`~cpembed.accelerator.network_code`), a folder for each program has ``program.c`` and its
    manifest, and ``network.json`` has the document with the sizes and hashes of all files.

    Parameters
    ----------
    network : AcceleratorNetwork
    folder : Path
        Folder of the files, which is made if it does not exist.
    document : mapping
        Document of :func:`cpembed.accelerator.document.network_document`.
    run : NetworkRun, optional
        A run, whose numbers the programs' manifests have.
    """
    make_folder(folder)
    names = _save_programs(network, folder, run)
    code: dict[str, Any]
    try:
        written = network_code(network)
    except LoweringError as error:
        code = {"missing": str(error)}
    else:
        code = written.document
        write_whole(folder / "network.c", written.source)
        write_whole(folder / "network.h", written.header)
        write_whole(folder / "constants.bin", written.constants)
        names += ["network.c", "network.h", "constants.bin"]
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    manifest = {**document, "code": code, "sha256": hashes}
    write_whole(folder / "network.json", json.dumps(manifest, indent=2) + "\n")


def _save_programs(network: AcceleratorNetwork, folder: Path, run: NetworkRun | None) -> list[str]:
    """Write each program in a folder of its operator; return the names of the files."""
    runs = {} if run is None else {step.step.name: step.runs for step in run.steps}
    names: list[str] = []
    for number, step in enumerate(network.programs):
        label = re.sub(r"[^A-Za-z0-9_.-]", "_", step.name)
        for part, program in enumerate(step.programs):
            suffix = f".{part}" if len(step.programs) > 1 else ""
            name = f"{number:03}_{label}{suffix}"
            part_run = runs[step.name][part] if step.name in runs else None
            names += [f"{name}/{file}" for file in save(program, folder / name, part_run)]
    return names

"""Pack kernels, and what checks and times them on a GPU, into a folder or one file.

    python -m benchmarks.gpu.pack -o DIR|FILE.zip [--suite S ...] [--only TEXT] [--best K]

Needs nvcc and no GPU. Without ``--suite`` every suite is packed, of DeepBench's a part. An
interrupted call goes on where it stopped when it is repeated; a FILE.zip is packed from the folder
FILE, which stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.gpu import building, ceiling_text, tvm_rules
from benchmarks.gpu.choosing import select
from benchmarks.gpu.suites import SUITES, PackedLayer, layers
from cpembed.cli.output import Bar
from cpembed.errors import CpembedError, LoweringError
from cpembed.runtime.measurement.environment import provenance

FOLDER = Path(__file__).resolve().parent

FORMAT = 1
"""Format of the documents in a pack; :mod:`benchmarks.gpu.remote` reads this one."""

STARTER = '''"""Checks and times the kernels of this folder on this machine's GPU: run.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from benchmarks.gpu.remote.main import main

if __name__ == "__main__":
    sys.exit(main())
'''


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    output: Path = options.output
    root = output.with_suffix("") if output.suffix == ".zip" else output
    try:
        building.require_compiler()
        packed_layers = [
            layer
            for layer in layers(tuple(options.suite or ()))
            if options.only is None or options.only in layer.slug or options.only in layer.name
        ]
        if not packed_layers:
            raise CpembedError(f"no layer has {options.only!r} in its name: leave --only out")
        failed = pack(root, packed_layers, options.best, dlight=not options.without_dlight)
        if output.suffix == ".zip":
            size = zipped(root, output)
            print(f"{output}: {len(packed_layers)} layers, {size / 2**20:.1f} MiB")
        else:
            print(f"{output}: {len(packed_layers)} layers")
    except CpembedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted: what is in {root} is not built again", file=sys.stderr)
        return 130
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.gpu.pack", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder, or FILE.zip")
    parser.add_argument("--suite", action="append", help=f"all of it: {', '.join(SUITES)}")
    parser.add_argument("--only", help="layers whose name contains this")
    parser.add_argument("--best", type=int, default=3, help="schedules of each layer (3)")
    parser.add_argument("--without-dlight", action="store_true", help="leave TVM's own rules out")
    return parser.parse_args(arguments)


def pack(
    root: Path, packed_layers: list[PackedLayer], best: int, *, dlight: bool
) -> dict[str, str]:
    """Build what is not there yet; return why layers failed, by name.

    Parameters
    ----------
    root : Path
        Folder of the pack.
    packed_layers : list of PackedLayer
        Layers to pack.
    best : int
        Number of schedules of a layer.
    dlight : bool
        True to pack the kernels of dlight's rules, too.
    """
    root.mkdir(parents=True, exist_ok=True)
    _program(root)
    _ceilings(root)
    failed: dict[str, str] = {}
    with Bar("packing", len(packed_layers)) as bar:
        for layer in packed_layers:
            bar.show(layer.name)
            try:
                packed_layer(root, layer, best, dlight=dlight)
            except LoweringError as error:
                failed[layer.name] = str(error)
            bar.show(layer.name, advance=1)
    names = [layer.slug for layer in packed_layers if layer.name not in failed]
    document = {"format": FORMAT, "layers": names, "best": best, "packed": provenance()}
    building.write_json(root / "pack.json", document)
    return failed


def packed_layer(root: Path, layer: PackedLayer, best: int, *, dlight: bool) -> dict[str, Any]:
    """Return the document of a layer, whose kernels are there.

    It is read back if the layer was packed before.

    Parameters
    ----------
    root : Path
        Folder of the pack.
    layer : PackedLayer
        The layer.
    best : int
        Number of schedules.
    dlight : bool
        True to pack the kernels of dlight's rules, too.
    """
    path = root / "layers" / f"{layer.slug}.json"
    request = {"format": FORMAT, "best": best, "dlight": dlight, "words": layer.words}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["asked"] == request and _complete(root, before):
            return before
    layer_workload = building.computation(layer)
    document: dict[str, Any] = {"asked": request, **building.layer_document(layer, layer_workload)}
    variants: dict[str, dict[str, Any]] = {}
    for selected in select(layer_workload, layer.target, layer.stored, best):
        kernels = building.text_of(selected)
        folder = building.kernel_files(kernels, root)
        if folder in variants:
            variants[folder]["also"] += selected.roles
        else:
            variants[folder] = building.variant_document(selected, kernels, folder)
    document["variants"] = list(variants.values())
    document["rules"] = _rules(root, document, layer.slug) if dlight else []
    building.write_json(path, document)
    return document


def _complete(root: Path, document: dict[str, Any]) -> bool:
    folders = [v["folder"] for v in (*document["variants"], *document["rules"]) if "folder" in v]
    return all((root / folder / "kernel.json").is_file() for folder in folders)


def _rules(root: Path, document: dict[str, Any], slug: str) -> list[dict[str, Any]]:
    """Return dlight's kernels of a layer: as shipped, and if that fails, repaired.

    What fails says why.
    """
    entries: list[dict[str, Any]] = []
    for name, repaired in (("dlight as shipped", False), ("dlight repaired", True)):
        try:
            rule_kernels = tvm_rules.scheduled(document, repaired=repaired)
            folder = root / "dlight" / f"{slug}{'-repaired' if repaired else ''}"
            folder.mkdir(parents=True, exist_ok=True)
            tvm_rules.compile_text(rule_kernels.source, folder, "kernel")
            building.write_json(folder / "kernel.json", {"kernels": list(rule_kernels.kernels)})
        except CpembedError as error:
            entries.append({"name": name, "failed": str(error)})
            continue
        entries.append(
            {
                "name": name,
                "folder": str(folder.relative_to(root)),
                "tensor_core": "mma" in rule_kernels.source,
                "reads": {i["name"]: i["name"] for i in document["inputs"]},
                "writes": "C",
                "prepares": [],
            }
        )
        break
    return entries


def _program(root: Path) -> None:
    """Copy the modules that run on the machine with the GPU."""
    target = root / "benchmarks" / "gpu" / "remote"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for source in sorted((FOLDER / "remote").glob("*.py")):
        shutil.copyfile(source, target / source.name)
    # Regular packages: others of these names on the path are not taken for them.
    shutil.copyfile(FOLDER / "__init__.py", target.parent / "__init__.py")
    (target.parents[1] / "__init__.py").write_text("", encoding="utf-8")
    (root / "run.py").write_text(STARTER, encoding="utf-8")


def _ceilings(root: Path) -> None:
    folder = root / "ceilings"
    folder.mkdir(exist_ok=True)
    for target in ceiling_text.NAMES:
        if not (folder / f"{target}.json").exists():
            tvm_rules.compile_text(ceiling_text.ceiling_text(target), folder, target)
            building.write_json(folder / f"{target}.json", ceiling_text.ceiling_document(target))


def zipped(root: Path, output: Path) -> int:
    """Write the parts that a run needs into one file; return its size in bytes."""
    draft = output.with_suffix(".zip.part")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in _carried(root):
            archive.write(path, path.relative_to(root))
    draft.replace(output)
    return output.stat().st_size


def _carried(root: Path) -> list[Path]:
    """Return the files of the layers that the pack names, no leftovers of other calls."""
    document = json.loads((root / "pack.json").read_text(encoding="utf-8"))
    paths = [root / "run.py", root / "pack.json"]
    folders = {root / "benchmarks", root / "ceilings"}
    for slug in document["layers"]:
        path = root / "layers" / f"{slug}.json"
        paths.append(path)
        layer = json.loads(path.read_text(encoding="utf-8"))
        each = (*layer["variants"], *layer["rules"])
        folders |= {root / variant["folder"] for variant in each if "folder" in variant}
    for folder in sorted(folders):
        paths += [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return paths


if __name__ == "__main__":
    sys.exit(main())

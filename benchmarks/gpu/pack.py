"""Pack the suites' kernels, and what checks and times them on a GPU, into a folder or one file.

    python -m benchmarks.gpu.pack -o DIR|FILE.zip [--suite S ...] [--only TEXT] [--best K]

Needs nvcc and no GPU. Without ``--suite`` every suite is packed, of DeepBench's a part. An
interrupted call goes on where it stopped when it is repeated; a FILE.zip is packed from the folder
FILE, which stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.gpu import tvm_rules
from benchmarks.gpu.suites import SUITES, layers
from cpembed.cli.output import Bar
from cpembed.driver.bench_pack import BEST, PackItem, PackResult, write_pack
from cpembed.errors import CpembedError
from cpembed.files import write_whole


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    output: Path = options.output
    try:
        items = [
            item
            for item in layers(tuple(options.suite or ()), options.machine)
            if options.only is None or options.only in item.name
        ]
        if not items:
            raise CpembedError(f"no layer has {options.only!r} in its name: leave --only out")
        result = pack(items, output, options.best, dlight=not options.without_dlight)
    except CpembedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        folder = output.with_suffix("") if output.suffix == ".zip" else output
        print(f"interrupted: what is in {folder} is not built again", file=sys.stderr)
        return 130
    print(f"{output}: {len(result.slugs)} layers, {result.bytes / 2**20:.1f} MiB")
    for name, reason in result.failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return 1 if result.failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.gpu.pack", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder, or FILE.zip")
    parser.add_argument("--suite", action="append", help=f"all of it: {', '.join(SUITES)}")
    parser.add_argument("--only", help="layers whose name contains this")
    parser.add_argument("--machine", help="GPU whose estimates decide the schedules (a100)")
    parser.add_argument("--best", type=int, default=BEST, help=f"schedules of each layer ({BEST})")
    parser.add_argument("--without-dlight", action="store_true", help="leave TVM's own rules out")
    return parser.parse_args(arguments)


def pack(items: list[PackItem], output: Path, best: int, *, dlight: bool) -> PackResult:
    """Pack layers, with the kernels of TVM's own rules.

    Parameters
    ----------
    items : list of PackItem
        Layers to pack.
    output : Path
        Folder or file of the pack.
    best : int
        Number of schedules of a layer.
    dlight : bool
        True to pack the kernels of dlight's rules, too.
    """
    with Bar("packing", len(items)) as bar:

        def progress(name: str, steps: int) -> None:
            bar.show(name, advance=steps)

        return write_pack(
            items,
            output,
            best,
            progress=progress,
            extend=add_rules if dlight else None,
            request={"dlight": dlight},
        )


def add_rules(item: PackItem, folder: Path) -> None:
    """Add dlight's kernels to a layer's folder: as shipped, and if that fails, repaired.

    What fails says why in the layer's document.
    """
    path = folder / "layer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["rules"]:
        return
    for name, repaired in (("dlight as shipped", False), ("dlight repaired", True)):
        try:
            kernels = tvm_rules.scheduled(item, repaired=repaired)
            stem = "repaired" if repaired else "shipped"
            tvm_rules.save(item, kernels, folder, stem)
        except CpembedError as error:
            document["rules"].append({"name": name, "failed": str(error)})
            continue
        tensor_core = "mma" in kernels.source
        document["rules"].append({"name": name, "folder": stem, "tensor_core": tensor_core})
        break
    write_whole(path, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

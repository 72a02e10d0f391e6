"""Compute the committed table of SRAM at 45 nm by CACTI 7, as zigzag-dse brings it.

    pip install zigzag-dse==3.9.1
    python -m experiments.studies.technology.sram --zigzag PATH

PATH is the folder ``zigzag`` of the package, which may be installed in any environment. CACTI runs
once for each capacity and width of an access; about a minute on one core.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

TABLE = (
    Path(__file__).parents[3] / "cpembed" / "cost" / "machine" / "technologies" / "45nm_sram.csv"
)

CAPACITIES = [2**power for power in range(6, 23)]
WIDTHS = [8, 16, 32, 64, 128, 256, 512]

FEWEST_ACCESSES = 32
"""Minimum number of accesses of a macro: CACTI finds no organisation for fewer."""

CHANGES = (
    "-technology (u) 0.045",
    '-cache type "ram"',
    '-Data array cell type - "itrs-lop"',
    '-Data array peripheral type - "itrs-lop"',
    '-Add ECC - "false"',
    "-associativity 1",
    "-UCA bank count 1",
    "-read-write port 1",
    "-exclusive read port 0",
    "-exclusive write port 0",
    "-single ended read ports 0",
)
"""Changes of the configuration that zigzag-dse writes: the last line of a kind counts."""

COLUMNS = {
    "read_pj": ("Dynamic read energy (nJ)", 1e3),
    "write_pj": ("Dynamic write energy (nJ)", 1e3),
    "area_um2": ("Area (mm2)", 1e6),
    "leakage_w": ("Standby leakage per bank(mW)", 1e-3),
    "cycle_ns": ("Random cycle time (ns)", 1.0),
}
"""Columns of our table: the name of CACTI's column, and the factor between their units."""


def baseline(folder: Path) -> Any:
    """Return zigzag-dse's configuration of CACTI."""
    spec = importlib.util.spec_from_file_location("creator", folder / "cacti_config_creator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CactiConfig()


def figures(folder: Path, config: Any, capacity: int, width: int) -> dict[str, float | int]:
    """Return a row of the table.

    CACTI reads its own files by relative paths, so it is run in place.

    Parameters
    ----------
    folder : Path
        Folder of CACTI.
    config : Any
        Configuration to start from.
    capacity : int
        Bytes of a macro.
    width : int
        Bits of an access.
    """
    size_lines = (
        f"-size (bytes) {capacity}",
        f"-block size (bytes) {width // 8}",
        f"-output/input bus width {width}",
    )
    config.write_config([f"{line}\n" for line in (*CHANGES, *size_lines)], str(folder / "sram.cfg"))
    output = folder / "sram.cfg.out"
    output.unlink(missing_ok=True)
    subprocess.run(
        ["./cacti", "-infile", "sram.cfg"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    names, values = (line.split(",") for line in output.read_text().splitlines()[:2])
    columns = dict(zip((name.strip() for name in names), values, strict=False))
    row: dict[str, float | int] = {"width_bits": width, "capacity_bytes": capacity}
    for name, (column, factor) in COLUMNS.items():
        row[name] = float(f"{float(columns[column]) * factor:.6g}")
    return row


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zigzag", type=Path, required=True, help="the folder of the package")
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "cacti"
        shutil.copytree(arguments.zigzag / "cacti" / "cacti_master", folder)
        (folder / "cacti").chmod(0o755)
        config = baseline(folder)
        rows = [
            figures(folder, config, capacity, width)
            for width in WIDTHS
            for capacity in CAPACITIES
            if capacity * 8 >= width * FEWEST_ACCESSES
        ]
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()

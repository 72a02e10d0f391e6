"""Compare our mappings with ZigZag's, on machines that both can describe.

    python -m benchmarks.zigzag --peers FOLDER [--python PYTHON] [--only WORD] [--limit 300]

installs ZigZag into an environment in FOLDER, unless it is there, runs it as a process for each
layer and objective, and writes ``zigzag.json`` and ``zigzag.md`` beside this file. Layers that are
in the JSON file are not run again. ZigZag is known to run under Python 3.11.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import mappers

FOLDER = Path(__file__).resolve().parent
PACKAGE, VERSION = "zigzag-dse", "3.9.1"

NOTES = """
Made by `benchmarks/zigzag.py`; machines, layers and columns are those of
[accelforge.md](accelforge.md). ZigZag orders the prime factors of the loops (its method *loma*,
uneven, with its default limit of six factors, which it merges to get there). Bytes are its accesses
of main memory, an access of 16 bytes.

Differences:

- Tiles are products of prime factors there, and of merged ones; here they are of any size.
- Cycles: ours are the longer of executing and transferring, as all transfers overlap on this
  machine; ZigZag places transfers in the periods in which data are needed, and adds what stalls.
  For products its cycles are those of its bytes; for convolutions they are up to three times as
  many, of which nothing more is explained here.

Not compared: energy of the buffers (its accesses are as wide as a port, ours are of bytes), several
units, and spatial mappings inside a unit.
"""


def main() -> None:
    """Run the comparison."""
    side = mappers.Peer(
        name="ZigZag",
        package=PACKAGE,
        version=VERSION,
        # It imports six without saying so.
        requirements=(f"{PACKAGE}=={VERSION}", "six"),
        script=FOLDER / "peers" / "zigzag_run.py",
        objectives=("bytes", "cycles"),
        most_units=1,
        notes=NOTES,
    )
    options = mappers.arguments(argparse.ArgumentParser(description=__doc__))
    mappers.compare(side, options, FOLDER / "zigzag")


if __name__ == "__main__":
    main()

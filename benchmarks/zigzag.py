"""Compare our mappings with ZigZag's, on machines that both can describe.

    python -m benchmarks.zigzag --peers FOLDER [--python PYTHON] [--only WORD] [--limit 300]

installs ZigZag into an environment in FOLDER, unless it is there, runs it as a process for each
layer and objective, and writes ``zigzag.json`` and ``zigzag.md`` beside this file. Layers that are
in the JSON file are not run again. ZigZag is known to run under Python 3.11.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import mappers

PACKAGE, VERSION = "zigzag-dse", "3.9.1"

NOTES = """
Made by `benchmarks/zigzag.py`; machines, layers and columns are those of
[accelforge.md](accelforge.md). ZigZag orders the prime factors of the loops (its method *loma*,
uneven, with its default limit of six factors, which it merges to get there). Bytes are its accesses
of main memory, an access of 16 bytes. Seconds are of processor time, in one process.

Differences:

- Tiles are products of prime factors there, and of merged ones; here they are of any size.
- Cycles: ours are the longer of executing and transferring, as all transfers overlap on this
  machine. ZigZag's are the sum of three parts (`parts` in `zigzag.json`): computing with stalls,
  loading the first tiles before, and storing the last one behind. Where it computes all the time,
  the difference is these two: 576 + 112 cycles for the first convolution, 256 + 784 for the second.
- Where main memory is the bottleneck, ZigZag takes fewer cycles than its own bytes need on the one
  port of main memory, because it loads the first tiles of both inputs at the same time: in all
  seven such rows its cycles are its bytes by 16, less the cycles of one of these tiles (176 to
  2,048). In two of them it moves as many bytes as ours, so that the ratio is above 1 (33,792 - 256
  and 62,976 - 256 cycles) though its mapping is no better: ours is the least by the bytes.
- Each access takes a port of a memory for at least a cycle there, however wide the port is. Our
  buffer has no ports, so each movement of an operand has its own port in ZigZag's buffer. With one
  port for all of them the convolutions take three times as long: 342,941 cycles of computing with
  stalls for the first are 112,896 reads of the input, 112,896 reads and as many writes of the sums,
  4,032 reads of weights, and 228 transfers of tiles, less the first of each of seven movements.

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
        script=Path(__file__).with_name("peers") / "zigzag_run.py",
        objectives=("bytes", "cycles"),
        most_units=1,
        notes=NOTES,
    )
    mappers.compare(side, __doc__)


if __name__ == "__main__":
    main()

"""Compare our mappings with AccelForge's, on machines that both can describe.

    python -m benchmarks.accelforge --peers FOLDER [--python PYTHON3.12] [--only WORD] [--limit 300]

installs AccelForge into an environment in FOLDER, unless it is there, runs it as a process for each
layer and objective, and writes ``accelforge.json`` and ``accelforge.md`` beside this file. Layers
that are in the JSON file are not run again. AccelForge needs Python 3.12.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import mappers

PACKAGE, VERSION = "accelforge", "1.0.467"

NOTES = """
Made by `benchmarks/accelforge.py`. A layer is mapped on a machine of one or several units with a
buffer each, filled from main memory, by execution of the unit: a block is one element there. A
buffer that all units share may lie between. With *multicast* one read of the memory above serves
all units that need the same tile at the same time; with *bypass* operands may pass by the shared
buffer. The *objective* is what both have the least of: bytes to and from main memory; cycles, the
longer of executing and transferring; or energy, of main memory (160 pJ a byte), of buffers (2 pJ a
byte read or written, 10 pJ for the shared one) and of executions (800 pJ). *Ratio* is ours over
theirs; *bound* says whether ours is proven to be the least by our model, or how far it is from a
bound at most. Seconds are of processor time, of the search alone, in one process. Nothing is
measured on hardware: both sides are estimates.

Differences:

- Energy, by 0.1 to 0.3 %: where tiles do not divide a loop, AccelForge counts the reads of a buffer
  as if the last tile were as large as the others; here each is counted.
- Several units: AccelForge may let units share a sum and write parts of it to main memory, where
  they are added by nothing and at no cost; it is told not to. With tiles that do not divide, it
  counts fractions of units and of tiles (4,106,922.75 bytes for 512 x 512 x 512 on four units, of
  blocks of 256 bytes), so that such tiles are left out there; with one unit they are compared.
- AccelForge holds all operands of an execution in the buffer of its unit, as the machine has it.
  Otherwise it lets an operand pass from main memory to all units by one read, past their buffers:
  with multicast 2,621,440 pJ less for 1024 x 64 x 256, the writes and reads of the buffers.
- The bound is that of our model, in which operands are held one inside the other, windows keep what
  consecutive tiles share, and units share parallel loops alone. With bypass and with multicast it
  is up to 14 % below the best mapping that either side finds.

Fused operators are compared in [fusion.md](fusion.md). Not compared: networks between memories,
leakage and area.
"""


def main() -> None:
    """Run the comparison."""
    side = mappers.Peer(
        name="AccelForge",
        package=PACKAGE,
        version=VERSION,
        requirements=(f"{PACKAGE}=={VERSION}",),
        script=Path(__file__).with_name("peers") / "accelforge_run.py",
        objectives=mappers.OBJECTIVES,
        most_units=1024,
        notes=NOTES,
    )
    mappers.compare(side, __doc__)


if __name__ == "__main__":
    main()

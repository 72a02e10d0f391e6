"""What a user takes away: the kernel's C, the interface that it is written on, and what it needs
to know of the operands."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cpembed.files import make_folder, write_whole
from cpembed.targets.scratchpad.execute import ScratchpadProgram
from cpembed.targets.scratchpad.executor import HEADER

INSTRUCTIONS = (
    "kernel.c is run by every processing element; scratchpad.h says what it needs of the machine, "
    "and the names of SW26010's own functions beside each; plan.json says how operands lie in main "
    "memory"
)


def save(artifact: ScratchpadProgram, path: Path) -> None:
    """``kernel.c``, ``scratchpad.h`` and ``plan.json`` in a folder."""
    plan = artifact.plan
    operands = [
        {
            "name": box.operand.name,
            "role": box.operand.role,
            "dtype": box.operand.dtype,
            "shape": list(box.operand.shape),
            "in_tiles": box.tiled,
            "box_elements": box.elements(plan.held),
        }
        for box in plan.form.boxes
    ]
    machine = plan.product.machine
    document = {
        "workload": str(plan.product.program.unfused),
        "instruction": plan.product.program.instruction.name,
        "machine": machine.name,
        "mesh": [machine.rows, machine.columns],
        "schedule": msgspec.to_builtins(plan.schedule),
        "scratchpads": [
            {"name": name, "used_bytes": used, "bytes": room}
            for name, used, room in zip(
                machine.memories, plan.used, machine.capacities, strict=True
            )
        ],
        "operands": operands,
        "tiles_are": "by tile, in the order of the workload's axes that move the operand, then by "
        "row and column of the mesh; each box begins where a whole one would",
    }
    make_folder(path)
    write_whole(path / "kernel.c", artifact.text)
    write_whole(path / "scratchpad.h", HEADER.read_text(encoding="utf-8"))
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    write_whole(path / "plan.json", text.decode() + "\n")

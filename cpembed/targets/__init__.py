"""Machines that execute derived programs, and the command groups that some of them bring."""

from __future__ import annotations

TARGET_COMMANDS: dict[str, tuple[str, str]] = {
    "calibrate": (
        "cpembed.targets.x86.commands",
        "Measure this machine for the model by which kernels are planned.",
    ),
    "vta": (
        "cpembed.targets.vta.commands",
        "Assemble, disassemble, check, run and time programs for VTA.",
    ),
}
"""Module that defines the click command ``command``, and its help, by name.

The modules are imported when their command is called, so that others start fast."""

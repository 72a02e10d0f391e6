"""VTA assembly: programs as text and back. ``docs/vta.md`` describes the language."""

from __future__ import annotations

from cpembed.targets.vta.assembly.assembler import assemble
from cpembed.targets.vta.assembly.disassembler import disassemble

__all__ = ["assemble", "disassemble"]

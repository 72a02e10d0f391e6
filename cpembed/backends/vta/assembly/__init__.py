"""VTA assembly: programs as text and back. ``docs/vta.md`` describes the language."""

from __future__ import annotations

from cpembed.backends.vta.assembly.assembler import assemble
from cpembed.backends.vta.assembly.disassembler import disassemble

__all__ = ["assemble", "disassemble"]

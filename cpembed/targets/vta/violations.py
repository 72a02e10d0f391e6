"""What a checker finds in a program."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.targets.vta.assembly.disassembler import instruction_text
from cpembed.targets.vta.program import VtaProgram


@dataclass(frozen=True)
class Violation:
    """``instruction`` is its number, or None where the program as a whole is concerned."""

    instruction: int | None
    problem: str
    remedy: str

    def line(self, program: VtaProgram) -> str:
        """One line: which instruction, its text, what is wrong, the remedy."""
        where = "program"
        if self.instruction is not None:
            where = f"instruction {self.instruction} "
            where += f"({instruction_text(program, self.instruction)})"
        return f"{where}: {self.problem}; {self.remedy}"

"""draft"""

from __future__ import annotations
import time
from cpembed.accelerator.program import Program
from cpembed.accelerator.proof.enumerated import Enumeration
from cpembed.accelerator.proof.result import Obligation, ProgramProof, UndecidedError, ObligationError
from cpembed.accelerator.proof.tensors import Tensors


def prove(program: Program) -> ProgramProof:
    started = time.perf_counter()
    try:
        tensors = Tensors.of(program)
        Enumeration(program, tensors).run()
    except ObligationError as refusal:
        return ProgramProof(program.name, (), str(refusal))
    return ProgramProof(
        program.name,
        (Obligation("dataflow", "enumeration", time.perf_counter() - started),),
        "",
        tensors.assumptions,
    )

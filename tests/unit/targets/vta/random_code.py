"""Random instructions that wait for one another without deadlock; for timing, data play no part."""

from __future__ import annotations

import random

from cpembed.targets.vta.isa import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Load,
    Memory,
    Module,
    Store,
    module_of,
)
from cpembed.targets.vta.tokens import Dependences

NEIGHBOURS = {
    Module.LOAD: (Module.COMPUTE,),
    Module.COMPUTE: (Module.LOAD, Module.STORE),
    Module.STORE: (Module.COMPUTE,),
}


def random_code(seed: int, count: int = 60):
    choose = random.Random(seed)
    code, last = Dependences(), {}
    for _ in range(count):
        instruction = _instruction(choose)
        waits = [
            last[module]
            for module in NEIGHBOURS[module_of(instruction)]
            if module in last and choose.random() < 0.3
        ]
        last[module_of(instruction)] = code.append(instruction, *waits)
    # All is done before FINISH: the store module through the compute module.
    code.append(Load(Memory.UOP, 0, 0, 0, 0, 0), *last.values())
    code.append(Finish())
    return code.instructions()


def _instruction(choose: random.Random):
    kind = choose.choice(("load", "load", "load", "store", "gemm", "alu", "nothing"))
    if kind == "gemm":
        return Gemm(0, choose.randint(1, 40), choose.randint(1, 3), 2, reset=choose.random() < 0.3)
    if kind == "alu":
        immediate = choose.random() < 0.5
        return Alu(AluOp.ADD, 0, choose.randint(1, 40), 1, 2, use_immediate=immediate)
    if kind == "nothing":
        return Load(choose.choice((Memory.INP, Memory.UOP)), 0, 0, 0, 0, 0)
    memory = choose.choice((Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    if kind == "store":
        memory = Memory.OUT
    x, y = choose.randint(1, 12), choose.randint(1, 5)
    pads = (0, 0, 0, 0)
    if memory in (Memory.INP, Memory.ACC) and choose.random() < 0.6:
        pads = tuple(choose.choice((0, 0, 1, 2, 5)) for _ in range(4))
    move = Store if memory is Memory.OUT else Load
    return move(memory, 0, choose.randint(0, 50), y, x, x + choose.randint(0, 9), *pads)

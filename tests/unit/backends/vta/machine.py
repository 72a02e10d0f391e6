# ruff: noqa: PT018
"""VTA's semantics in plain Python: what lowered programs are run on, one instruction at a time.

Instructions execute in program order; tokens are counted, and must never be popped before they
are pushed. Reading SRAM that nothing has written is an error.
"""

from __future__ import annotations

import numpy as np

from cpembed.backends.vta.encoding import decode_uops
from cpembed.backends.vta.isa import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Load,
    Memory,
    Module,
    Store,
    Uop,
    module_of,
)
from cpembed.backends.vta.program import VtaProgram

ORDER = (Module.LOAD, Module.COMPUTE, Module.STORE)
DTYPES = {Memory.INP: np.int8, Memory.WGT: np.int8, Memory.ACC: np.int32, Memory.OUT: np.int8}


class Machine:
    def __init__(self, program: VtaProgram) -> None:
        config = program.config
        self.program = program
        self.dram = program.dram.copy()
        self.sram = {
            m: np.zeros((config.elements(m), *config.tile_shape(m)), d) for m, d in DTYPES.items()
        }
        self.known = {m: np.zeros(config.elements(m), bool) for m in (*DTYPES, Memory.UOP)}
        self.uops: list[Uop | None] = [None] * config.elements(Memory.UOP)
        self.tokens: dict[tuple[int, int], int] = {}

    def run(self) -> np.ndarray:
        assert self.program.base == 0
        for instruction in self.program.instructions:
            here = ORDER.index(module_of(instruction))
            tokens = instruction.tokens
            for flag, there in ((tokens.pop_prev, here - 1), (tokens.pop_next, here + 1)):
                if flag:
                    self.tokens[there, here] -= 1
                    assert self.tokens[there, here] >= 0
            self.execute(instruction)
            for flag, there in ((tokens.push_prev, here - 1), (tokens.push_next, here + 1)):
                if flag:
                    assert 0 <= there < len(ORDER)
                    self.tokens[here, there] = self.tokens.get((here, there), 0) + 1
        assert isinstance(self.program.instructions[-1], Finish)
        assert not any(self.tokens.values())
        return self.dram

    def execute(self, instruction) -> None:
        match instruction:
            case Load(memory=Memory.UOP):
                self.load_uops(instruction)
            case Load():
                self.load(instruction)
            case Store():
                self.store(instruction)
            case Gemm():
                self.gemm(instruction)
            case Alu():
                self.alu(instruction)
            case Finish():
                assert instruction is self.program.instructions[-1]

    def elements(self, memory: Memory) -> np.ndarray:
        rows, columns = self.program.config.tile_shape(memory)
        size = self.program.config.element_bytes(memory)
        whole = self.dram[: len(self.dram) // size * size]
        return whole.view(DTYPES[memory]).reshape(-1, rows, columns)

    def load_uops(self, load: Load) -> None:
        assert load.y == 1 and load.x_stride == load.x
        words = self.dram[load.dram * 4 : (load.dram + load.x) * 4].tobytes()
        uops = decode_uops(words, self.program.config)
        assert load.sram + load.x <= min(2048, len(self.uops))
        self.uops[load.sram : load.sram + load.x] = uops

    def load(self, load: Load) -> None:
        pads = (load.y_before, load.y_after, load.x_before, load.x_after)
        assert load.memory is Memory.INP or not any(pads)
        assert max(pads) <= 15 and load.x > 0 and load.y > 0
        assert max(load.x, load.y, load.x_stride) <= 65535
        dram, sram = self.elements(load.memory), self.sram[load.memory]
        height = load.y_before + load.y + load.y_after
        width = load.x_before + load.x + load.x_after
        box = np.zeros((height, width, *sram.shape[1:]), sram.dtype)
        rows = load.dram + np.arange(load.y)[:, None] * load.x_stride + np.arange(load.x)
        box[load.y_before : load.y_before + load.y, load.x_before : load.x_before + load.x] = dram[
            rows
        ]
        end = load.sram + height * width
        assert end <= len(sram)
        sram[load.sram : end] = box.reshape(-1, *sram.shape[1:])
        self.known[load.memory][load.sram : end] = True

    def store(self, store: Store) -> None:
        assert max(store.x, store.y, store.x_stride) <= 65535
        rows = store.dram + np.arange(store.y)[:, None] * store.x_stride + np.arange(store.x)
        at = slice(store.sram, store.sram + store.x * store.y)
        assert self.known[Memory.OUT][at].all() and at.stop <= len(self.known[Memory.OUT])
        values = self.sram[Memory.OUT][at]
        self.elements(Memory.OUT)[rows.reshape(-1)] = values

    def indices(self, op: Gemm | Alu) -> np.ndarray:
        """dst, src, wgt of every execution, in order."""
        assert 1 <= op.outer <= 16383 and 1 <= op.inner <= 16383
        assert op.uop_begin < op.uop_end
        uops = self.uops[op.uop_begin : op.uop_end]
        table = np.array([(u.dst, u.src, u.wgt) for u in uops])
        wgt = op.wgt if isinstance(op, Gemm) else type(op.dst)()
        outer = np.array([op.dst.outer, op.src.outer, wgt.outer])
        inner = np.array([op.dst.inner, op.src.inner, wgt.inner])
        grid = (
            np.arange(op.outer)[:, None, None, None] * outer
            + np.arange(op.inner)[:, None, None] * inner
        )
        return (grid + table).reshape(-1, 3)

    def check_distance(self, dst: np.ndarray, distance: int) -> None:
        for apart in range(1, distance):
            assert (dst[apart:] != dst[:-apart]).all()

    def gemm(self, gemm: Gemm) -> None:
        dst, src, wgt = self.indices(gemm).T
        self.check_distance(dst, 3)
        acc = self.sram[Memory.ACC]
        if gemm.reset:
            acc[dst] = 0
            self.known[Memory.ACC][dst] = True
            self.known[Memory.OUT][dst] = False
            return
        assert self.known[Memory.ACC][dst].all()
        assert self.known[Memory.INP][src].all() and self.known[Memory.WGT][wgt].all()
        inp = self.sram[Memory.INP][src].astype(np.int32)
        weights = self.sram[Memory.WGT][wgt].astype(np.int32)
        np.add.at(acc, dst, np.einsum("nbi,noi->nbo", inp, weights, optimize=True))
        self.write_back(dst)

    def alu(self, alu: Alu) -> None:
        dst, src, _ = self.indices(alu).T
        self.check_distance(dst, 2)
        acc = self.sram[Memory.ACC]
        assert self.known[Memory.ACC][dst].all() and self.known[Memory.ACC][src].all()
        assert len(np.unique(dst)) == len(dst), "one after the other is not modelled"
        if alu.use_immediate:
            assert (src == dst).all()
        value = np.int32(alu.immediate) if alu.use_immediate else acc[src]
        match alu.op:
            case AluOp.MIN:
                acc[dst] = np.minimum(acc[dst], value)
            case AluOp.MAX:
                acc[dst] = np.maximum(acc[dst], value)
            case AluOp.ADD:
                acc[dst] += value
            case AluOp.SHR:
                assert 0 <= alu.immediate <= 31
                acc[dst] >>= value
            case AluOp.MUL:
                raise AssertionError("MUL is in no implementation")
        self.write_back(dst)

    def write_back(self, dst: np.ndarray) -> None:
        self.sram[Memory.OUT][dst] = self.sram[Memory.ACC][dst].astype(np.int8)
        self.known[Memory.OUT][dst] = True

"""Hand-assembled convolutions: stride 1, padded, one or two virtual threads, a requantizing tail.

A thread owns a part of each buffer and computes ``rows`` output rows of one block of channels at a
time; threads take turns, so that one's loads run beside the other's products.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cpembed.targets.vta.encoding import pack_uops
from cpembed.targets.vta.isa import (
    Alu,
    AluOp,
    Factors,
    Finish,
    Gemm,
    Load,
    Memory,
    Store,
    Tokens,
    VtaConfig,
)
from cpembed.targets.vta.program import Role, Tensor, VtaProgram

LARGEST = 1024
"""Bytes of the largest element in the tests: tensors start at multiples."""

NOTHING = Load(Memory.UOP, 0, 0, 0, 0, 0)
"""Moves nothing; with tokens, it waits or signals."""


def image(arrays, *, config=None, base=0, code=()):
    """A program whose tensors are named arrays, one after the other; a role may come with one."""
    tensors, chunks, end = {}, [], 0
    for name, value in arrays.items():
        array, role = value if isinstance(value, tuple) else (value, None)
        end = -(-end // LARGEST) * LARGEST
        tensors[name] = Tensor(end, array.shape, str(array.dtype), role)
        chunks.append((end, np.ascontiguousarray(array).view(np.uint8).reshape(-1)))
        end += array.nbytes
    dram = np.zeros(end, np.uint8)
    for start, chunk in chunks:
        dram[start : start + len(chunk)] = chunk
    return VtaProgram(config or VtaConfig(), tuple(code), dram, tensors, base)


@dataclass(frozen=True)
class Convolution:
    size: int = 28
    channels: int = 128
    outputs: int = 128
    kernel: int = 3
    rows: int = 14
    threads: int = 2
    shift: int | None = 8
    config: VtaConfig = field(default_factory=VtaConfig)
    base: int = 0
    seed: int = 0

    def data(self):
        """Input ``[c, y, x, n, c']``, weights ``[k, c, r, s, k', c']``."""
        random = np.random.default_rng(self.seed)
        block, batch = self.config.block, self.config.batch
        shape = (self.channels // block, self.size, self.size, batch, block)
        taps = (self.outputs // block, shape[0], self.kernel, self.kernel, block, block)
        return (random.integers(-128, 128, s, dtype=np.int8) for s in (shape, taps))

    def expected(self):
        """The output ``[k, y, x, n, k']`` by numpy."""
        data, weights = self.data()
        pad = self.kernel // 2
        wide = np.pad(data.astype(np.int64), ((0, 0), (pad, pad), (pad, pad), (0, 0), (0, 0)))
        total = 0
        for r in range(self.kernel):
            for s in range(self.kernel):
                window = wide[:, r : r + self.size, s : s + self.size]
                tap = weights[:, :, r, s].astype(np.int64)
                total = total + np.einsum("cyxni,kcoi->kyxno", window, tap, optimize=True)
        if self.shift is None:
            return total.astype(np.int8)
        return np.clip(total >> self.shift, -128, 127).astype(np.int8)

    def program(self) -> VtaProgram:
        data, weights = self.data()
        block = self.config.block
        outputs = np.zeros((self.outputs // block, *data.shape[1:]), np.int8)
        whole = image(
            {
                "data": (data, Role.INPUT),
                "weights": (weights, Role.WEIGHT),
                "uops": (self._uops(), Role.UOPS),
                "outputs": (outputs, Role.OUTPUT),
            },
            config=self.config,
            base=self.base,
        )
        code = tuple(self._code(whole.tensors))
        return VtaProgram(self.config, code, whole.dram, whole.tensors, self.base)

    def _part(self, memory, thread):
        return thread * (self.config.elements(memory) // self.threads)

    def _uops(self):
        """For each thread one micro-op a pixel, then one of the accumulators' start."""
        pad = 2 * (self.kernel // 2)
        rows = []
        for thread in range(self.threads):
            acc, inp, wgt = (self._part(m, thread) for m in (Memory.ACC, Memory.INP, Memory.WGT))
            rows += [
                (acc + y * self.size + x, inp + y * (self.size + pad) + x, wgt)
                for y in range(self.rows)
                for x in range(self.size)
            ]
            rows.append((acc, acc, 0))
        return pack_uops(*np.array(rows).T, config=self.config)

    def _code(self, tensors):
        def address(name, memory, element=0):
            start = self.base + tensors[name].offset
            return start // self.config.element_bytes(memory) + element

        block = self.config.block
        count = tensors["uops"].shape[0]
        yield Load(Memory.UOP, 0, address("uops", Memory.UOP), 1, count, count)
        blocks = self.outputs // block
        tiles = [(k, y) for k in range(blocks) for y in range(0, self.size, self.rows)]
        groups = [tiles[at : at + self.threads] for at in range(0, len(tiles), self.threads)]
        for number, group in enumerate(groups):
            for thread, _ in enumerate(group):
                tokens = Tokens(pop_next=number > 0)
                yield self._over_tile(Gemm, thread, reset=True, tokens=tokens)
            for c in range(self.channels // block):
                for thread, (k, y) in enumerate(group):
                    again = (number, c) > (0, 0)
                    yield from self._loads(thread, k, y, c, address, Tokens(pop_next=again))
                for thread, _ in enumerate(group):
                    last = number + 1 == len(groups) and c + 1 == self.channels // block
                    yield self._products(thread, push_prev=not last)
            for thread, (k, y) in enumerate(group):
                yield from self._tail(thread)
                pixels = self.rows * self.size
                at = address("outputs", Memory.OUT, (k * self.size + y) * self.size)
                sram = self._part(Memory.ACC, thread)
                tokens = Tokens(pop_prev=True, push_prev=True)
                yield Store(Memory.OUT, sram, at, 1, pixels, pixels, tokens=tokens)
        for _ in groups[-1]:
            yield Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True))
        yield Finish()

    def _uop_range(self, thread):
        return thread * (self.rows * self.size + 1), (thread + 1) * (self.rows * self.size + 1)

    def _over_tile(self, kind, thread, *first, **rest):
        last = self._uop_range(thread)[1]
        factors = Factors(self.size, 1)
        if kind is Alu:
            rest["src"] = factors
        return kind(*first, last - 1, last, self.rows, self.size, dst=factors, **rest)

    def _loads(self, thread, k, y, c, address, tokens):
        pad, taps = self.kernel // 2, self.kernel**2
        top, bottom = max(pad - y, 0), max(y + self.rows + pad - self.size, 0)
        first, count = max(y - pad, 0), self.rows + 2 * pad - top - bottom
        at = address("data", Memory.INP, (c * self.size + first) * self.size)
        sram = self._part(Memory.INP, thread)
        shape = (count, self.size, self.size, top, bottom, pad, pad)
        yield Load(Memory.INP, sram, at, *shape, tokens=tokens)
        blocks = self.channels // self.config.block
        at = address("weights", Memory.WGT, (k * blocks + c) * taps)
        sram = self._part(Memory.WGT, thread)
        yield Load(Memory.WGT, sram, at, 1, taps, taps, tokens=Tokens(push_next=True))

    def _products(self, thread, *, push_prev):
        begin, last = self._uop_range(thread)
        width = self.size + 2 * (self.kernel // 2)
        return Gemm(
            begin,
            last - 1,
            self.kernel,
            self.kernel,
            src=Factors(width, 1),
            wgt=Factors(self.kernel, 1),
            tokens=Tokens(pop_prev=True, push_prev=push_prev),
        )

    def _tail(self, thread):
        if self.shift is None:
            yield Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(push_next=True))
            return
        steps = ((AluOp.SHR, self.shift), (AluOp.MIN, 127), (AluOp.MAX, -128))
        for op, immediate in steps:
            tokens = Tokens(push_next=op is AluOp.MAX)
            rest = {"use_immediate": True, "immediate": immediate, "tokens": tokens}
            yield self._over_tile(Alu, thread, op, **rest)

"""Random VTA programs for hypothesis, from the widths that the hardware guide gives.

The widths are written here once more, so that they do not come from the code under test.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from cpembed.targets.vta.encoding import pack_uops, unpack_uops
from cpembed.targets.vta.isa import (
    Alu,
    AluOp,
    Factors,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Tokens,
    VtaConfig,
)
from cpembed.targets.vta.program import Role, Tensor, VtaProgram

NAME = string.ascii_letters + string.digits + "_."

CONFIGS = {
    "1x16x16": VtaConfig(),
    "8x8x8": VtaConfig(log_batch=3, log_block=3),
    "1x32x32": VtaConfig(log_block=5),
    "4x16x16": VtaConfig(log_batch=2),
    "few inputs": VtaConfig(log_inp_buff=14),
    "small buffers": VtaConfig(log_uop_buff=10, log_inp_buff=12, log_wgt_buff=14, log_acc_buff=13),
}


class Uop(NamedTuple):
    """A micro-op: element indices in ACC, INP (ACC for the ALU) and WGT."""

    dst: int
    src: int = 0
    wgt: int = 0


def encode_uops(uops: Sequence[Uop], config: VtaConfig) -> bytes:
    if not uops:
        return b""
    columns = (np.array(column, object) for column in zip(*uops, strict=True))
    return pack_uops(*columns, config=config).tobytes()


def decode_uops(data: bytes, config: VtaConfig) -> tuple[Uop, ...]:
    columns = unpack_uops(np.frombuffer(data, dtype="<u4"), config)
    return tuple(map(Uop, *(column.tolist() for column in columns)))


def bits(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**width - 1)


tokens = st.builds(Tokens, *[st.booleans()] * 4)


def index_widths(config: VtaConfig) -> tuple[int, int, int, int]:
    """LUOP, LINP, LWGT, LACC for bytes and 32-bit accumulators."""
    uop = config.log_uop_buff - 2
    inp = config.log_inp_buff - config.log_batch - config.log_block
    wgt = config.log_wgt_buff - 2 * config.log_block
    acc = config.log_acc_buff - config.log_batch - config.log_block - 2
    return uop, inp, wgt, acc


def instructions(config: VtaConfig) -> st.SearchStrategy[Instruction]:
    uop, inp, wgt, acc = index_widths(config)

    def factors(width: int) -> st.SearchStrategy[Factors]:
        return st.builds(Factors, bits(width), bits(width))

    moved = [st.sampled_from(Memory), bits(16), bits(32), *[bits(16)] * 3, *[bits(4)] * 4, tokens]
    loops = [bits(uop), bits(uop + 1), bits(14), bits(14)]
    gemm = [*loops, factors(acc), factors(inp), factors(wgt), st.booleans(), tokens]
    immediate = [st.booleans(), st.integers(-(2**15), 2**15 - 1)]
    alu = [st.sampled_from(AluOp), *loops, factors(acc), factors(acc), *immediate, tokens]
    return st.one_of(
        st.builds(Load, *moved),
        st.builds(Store, *moved),
        st.builds(Gemm, *gemm),
        st.builds(Alu, *alu),
        st.builds(Finish, tokens),
    )


def uops(config: VtaConfig) -> st.SearchStrategy[Uop]:
    _, inp, wgt, acc = index_widths(config)
    return st.builds(Uop, bits(acc), bits(max(acc, inp)), bits(wgt))


@st.composite
def programs(draw: st.DrawFn, config: VtaConfig) -> VtaProgram:
    """A program with some tensors in DRAM, gaps between them, and random bytes."""
    names = draw(
        st.lists(
            st.from_regex(r"[A-Za-z_][\w.]{0,6}", fullmatch=True, alphabet=NAME),
            unique=True,
            max_size=4,
        )
    )
    tensors: dict[str, Tensor] = {}
    end = 0
    for name in names:
        offset = end + draw(st.sampled_from([0, 1, 16, 256]))
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
        role = draw(st.sampled_from([None, *Role]))
        tensor = Tensor(offset, shape, draw(st.sampled_from(["int8", "int32", "uint32"])), role)
        tensors[name] = tensor
        end = offset + tensor.size_bytes
    size = end + draw(st.sampled_from([0, 40]))
    sparse = st.sampled_from([0, 0, 0, 1, 255])
    dram = np.array(draw(st.lists(sparse, min_size=size, max_size=size)), dtype=np.uint8)
    code = tuple(draw(st.lists(instructions(config), max_size=8)))
    base = draw(st.sampled_from([0, 0x1000, 0x10004]))
    return VtaProgram(config, code, dram, tensors, base)


def assert_same(left: VtaProgram, right: VtaProgram) -> None:
    """Programs compare by identity; this compares what they hold."""
    assert left.config == right.config
    assert left.instructions == right.instructions
    assert list(left.tensors.items()) == list(right.tensors.items())
    assert left.base == right.base
    assert np.array_equal(left.dram, right.dram)

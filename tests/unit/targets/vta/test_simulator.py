"""What programs leave in DRAM, against numpy; in several orders of the modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from cpembed.errors import ProgramError, SpecError
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
from cpembed.targets.vta.program import Role, VtaProgram
from cpembed.targets.vta.simulator import output_names, simulate
from cpembed.targets.vta.tokens import POLICIES
from tests.unit.targets.vta.convolution import Convolution, image

CUBE = VtaConfig(log_batch=3, log_block=3)
MACHINES = {
    "1x16x16": VtaConfig(),
    "8x8x8": CUBE,
    "4x16x16": VtaConfig(log_batch=2),
    "1x32x32": VtaConfig(log_block=5, log_uop_buff=13),
    "2x4x4": VtaConfig(log_batch=1, log_block=2, log_inp_buff=12, log_wgt_buff=13, log_acc_buff=14),
}
NO = Factors()
_END = (Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True)), Finish())
_STORED = Tokens(pop_prev=True, push_prev=True)


@pytest.mark.parametrize("name", MACHINES)
def test_convolutions_equal_numpy_on_every_machine(name):
    config = MACHINES[name]
    block = config.block
    case = Convolution(6, 2 * block, 2 * block, rows=3, config=config, shift=7, base=1 << 16)
    program = case.program()
    assert np.array_equal(program.tensor("outputs", simulate(program)), case.expected())
    assert not program.tensor("outputs").any(), "the program's own image is left alone"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_order_of_the_modules_makes_no_difference(threads):
    case = Convolution(8, 64, 64, rows=4, threads=threads)
    program, expected = case.program(), case.expected()
    for policy in POLICIES:
        for seed in range(5 if policy == "random" else 1):
            dram = simulate(program, policy=policy, seed=seed)
            assert np.array_equal(program.tensor("outputs", dram), expected)


def test_other_data_run_through_the_same_program():
    case, other = Convolution(6, 32, 32, rows=3), Convolution(6, 32, 32, rows=3, seed=1)
    program, image_of_other = case.program(), other.program().dram
    dram = simulate(program, dram=image_of_other, checked=False)
    assert np.array_equal(program.tensor("outputs", dram), other.expected())


def alu_program(values, op, *, immediate=None, config=None, second=None):
    """op applied to all accumulators; the low bytes stored."""
    count = len(values)
    arrays = {"values": values}
    if second is not None:
        arrays["second"] = second
    arrays["uops"] = pack_uops([0, 0], [0, count], [0, 0], config=config or VtaConfig())
    shape = (*values.shape[:-1], values.shape[-1])
    arrays["out"] = (np.zeros(shape, np.int8), Role.OUTPUT)
    empty = image(arrays, config=config)

    def at(name, memory):
        return empty.tensors[name].offset // empty.config.element_bytes(memory)

    once = Factors(0, 1)
    code = [
        Load(Memory.UOP, 0, at("uops", Memory.UOP), 1, 2, 2),
        Load(Memory.ACC, 0, at("values", Memory.ACC), 1, count, count),
    ]
    push = Tokens(push_next=True)
    if second is None:
        rest = {"use_immediate": True, "immediate": immediate, "tokens": push}
        code.append(Alu(op, 0, 1, 1, count, once, once, **rest))
    else:
        code.append(Load(Memory.ACC, count, at("second", Memory.ACC), 1, count, count))
        code.append(Alu(op, 1, 2, 1, count, once, once, tokens=push))
    out = at("out", Memory.OUT)
    code.append(Store(Memory.OUT, 0, out, 1, count, count, tokens=_STORED))
    return VtaProgram(empty.config, (*code, *_END), empty.dram, empty.tensors)


def numbers(seed, *shape):
    random = np.random.default_rng(seed)
    values = random.integers(-(2**31), 2**31, shape, dtype=np.int64).astype(np.int32)
    values.flat[:4] = (2**31 - 1, -(2**31), 0, -1)
    return values


REFERENCE = {
    AluOp.MIN: np.minimum,
    AluOp.MAX: np.maximum,
    AluOp.ADD: np.add,
    AluOp.SHR: lambda a, b: np.where(b >= 0, a >> np.maximum(b, 0), a << np.maximum(-b, 0)),
    AluOp.MUL: np.multiply,
}


@pytest.mark.parametrize("op", AluOp)
@pytest.mark.parametrize("immediate", [0, 1, 7, 31, -1, -9, -31])
def test_the_alu_with_an_immediate_equals_numpy(op, immediate):
    values = numbers(immediate + 31, 20, 1, 16)
    program = alu_program(values, op, immediate=immediate)
    expected = REFERENCE[op](values.astype(np.int64), np.int64(immediate)).astype(np.int8)
    # MUL and shifts to the left are what not every implementation does.
    dram = simulate(program, checked=op is not AluOp.MUL and immediate >= 0)
    assert np.array_equal(program.tensor("out", dram), expected)


@pytest.mark.parametrize("op", AluOp)
@pytest.mark.parametrize("config", [VtaConfig(), CUBE], ids=["1x16x16", "8x8x8"])
def test_the_alu_on_two_accumulators_equals_numpy(op, config):
    shape = (12, config.batch, config.block)
    values, second = numbers(1, *shape), numbers(2, *shape)
    if op is AluOp.SHR:
        second = (second % 32).astype(np.int32)
    program = alu_program(values, op, config=config, second=second)
    expected = REFERENCE[op](values.astype(np.int64), second.astype(np.int64)).astype(np.int8)
    dram = simulate(program, checked=op is not AluOp.MUL)
    assert np.array_equal(program.tensor("out", dram), expected)


def test_sums_wrap_at_32_bits_and_stores_cut_off():
    """Shown byte by byte: 2^31 - 1 plus 127 times 127 wraps."""
    values = np.full((1, 1, 16), 2**31 - 1, np.int32)
    data, weights = np.zeros((1, 1, 16), np.int8), np.zeros((1, 16, 16), np.int8)
    data[..., 0], weights[:, :, 0] = 127, 127
    total = np.int64(2**31 - 1 + 127 * 127)
    for shift in (0, 8, 16, 24):
        empty = image(
            {
                "data": data,
                "weights": weights,
                "values": values,
                "uops": pack_uops([0], [0], [0], config=VtaConfig()),
                "out": (np.zeros((1, 1, 16), np.int8), Role.OUTPUT),
            }
        )
        sizes = {Memory.UOP: 4, Memory.ACC: 64, Memory.INP: 16, Memory.WGT: 256, Memory.OUT: 16}

        def load(name, memory, empty=empty, sizes=sizes, **tokens):
            at = empty.tensors[name].offset // sizes[memory]
            return Load(memory, 0, at, 1, 1, 1, tokens=Tokens(**tokens))

        code = (
            load("uops", Memory.UOP),
            load("values", Memory.ACC),
            load("data", Memory.INP),
            load("weights", Memory.WGT, push_next=True),
            Gemm(0, 1, 1, 1, tokens=Tokens(pop_prev=True)),
            Alu(AluOp.SHR, 0, 1, 1, 1, NO, NO, True, shift, Tokens(push_next=True)),
            Store(Memory.OUT, 0, empty.tensors["out"].offset // 16, 1, 1, 1, tokens=_STORED),
            *_END,
        )
        program = VtaProgram(VtaConfig(), code, empty.dram, empty.tensors)
        expected = (total.astype(np.int32) >> shift).astype(np.int8)
        assert set(program.tensor("out", simulate(program)).ravel().tolist()) == {int(expected)}


def test_padded_strided_loads_and_stores():
    """A 3x4 part of a 5x7 image, in a frame of zeros, goes to every second row of the output."""
    values = numbers(5, 5, 7, 1, 16)
    out = np.full((5, 2 * 7, 1, 16), 99, np.int8)
    empty = image(
        {
            "values": values,
            "uops": pack_uops([0], [0], [0], config=VtaConfig()),
            "out": (out, Role.OUTPUT),
        }
    )
    first = empty.tensors["values"].offset // 64 + 7 + 2
    every, width = Factors(7, 1), 7
    code = (
        Load(Memory.UOP, 0, empty.tensors["uops"].offset // 4, 1, 1, 1),
        Load(Memory.ACC, 0, first, 3, 4, 7, 1, 1, 1, 2),
        Alu(AluOp.ADD, 0, 1, 5, 7, every, every, True, 1, Tokens(push_next=True)),
        Store(Memory.OUT, 0, empty.tensors["out"].offset // 16, 5, width, 14, tokens=_STORED),
        *_END,
    )
    program = VtaProgram(VtaConfig(), code, empty.dram, empty.tensors)
    expected = out.copy()
    framed = np.pad(values[1:4, 2:6], ((1, 1), (1, 2), (0, 0), (0, 0)))
    expected[:, :7] = (framed.astype(np.int64) + 1).astype(np.int8)
    assert np.array_equal(program.tensor("out", simulate(program)), expected)


def test_outputs_are_those_declared_or_else_those_stored_to():
    program = Convolution(6, 32, 32, rows=3).program()
    assert output_names(program) == ("outputs",)
    bare = {name: structs.replace(tensor, role=None) for name, tensor in program.tensors.items()}
    assert output_names(replace(program, tensors=bare)) == ("outputs",)


def test_a_deadlock_names_who_waits_for_whom():
    code = (
        Load(Memory.INP, 0, 0, 0, 0, 0, tokens=Tokens(pop_next=True)),
        Load(Memory.UOP, 0, 0, 0, 0, 0, tokens=Tokens(pop_prev=True, push_prev=True)),
        Finish(),
    )
    program = VtaProgram(VtaConfig(), code, np.zeros(4, np.uint8), {})
    for checked in (True, False):
        with pytest.raises(ProgramError) as error:
            simulate(program, checked=checked)
        text = str(error.value)
        assert "deadlock after 0 of 3 instructions" in text
        assert "load waits for compute at instruction 0" in text
        assert "compute waits for load at instruction 1" in text
        assert "store is done" in text


def test_other_element_types_are_refused():
    config = VtaConfig(log_inp_width=4)
    with pytest.raises(SpecError, match="16 and weights of 8 bits"):
        simulate(VtaProgram(config, (Finish(),), np.zeros(4, np.uint8), {}))


@pytest.mark.slow
def test_a_core_simulates_a_thousand_million_products_a_second():
    import time

    case = Convolution(28, 256, 512, rows=14)
    program = case.program()
    simulate(Convolution(6, 32, 32, rows=3).program())
    begin = time.process_time()
    simulate(program)
    assert 28 * 28 * 256 * 512 * 9 / (time.process_time() - begin) > 1e9

"""Shipped instruction sets against the figures of their sources."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from cpembed.hw.isa import InstructionSet, IsaInstruction, MemoryKind, Synchronization
from cpembed.hw.isa_reader import available_instruction_sets, load_instruction_set
from cpembed.hw.loader import available_targets
from cpembed.ir.interpreter import interpret

KIBI = 1024
EXAMPLES = Path(__file__).parents[3] / "examples" / "accelerator"


@dataclass(frozen=True)
class Figures:
    """Published figures of a machine.

    Attributes
    ----------
    bytes_of : mapping of str to int
        Capacity of memories.
    macs_per_cycle : float
        Products a cycle of the named instruction at its largest sizes, without what an execution
        takes once.
    """

    source: str
    product: str
    macs_per_cycle: float
    bytes_of: dict[str, int]
    banks_of: dict[str, int] = field(default_factory=dict[str, int])


FIGURES = {
    "gemmini": Figures(
        source="ucb-bar/gemmini, Configs.scala, defaultConfig: meshRows 16, meshColumns 16, "
        "sp_capacity 256 KB, acc_capacity 64 KB, sp_banks 4, acc_banks 2",
        product="compute",
        macs_per_cycle=16 * 16,
        bytes_of={"scratchpad": 256 * KIBI, "accumulator": 64 * KIBI, "array": 256},
        banks_of={"scratchpad": 4, "accumulator": 2},
    ),
    "tpu_like": Figures(
        source="Jouppi et al., ISCA 2017: 65,536 products, unified buffer 24 MiB, accumulators "
        "4 MiB, FIFO of four tiles of 64 KiB; a quarter of each side is a sixteenth of each",
        product="matmul",
        macs_per_cycle=65_536 / 16,
        bytes_of={
            "unified": 24 * KIBI * KIBI // 16,
            "sums": 4 * KIBI * KIBI // 16,
            "fifo": 4 * 64 * KIBI // 16,
        },
    ),
    "nvdla_like": Figures(
        source="nvdla/hw, spec/defs/nv_large.spec: MAC_ATOMIC_C_SIZE_64, MAC_ATOMIC_K_SIZE_32, "
        "CBUF_BANK_NUMBER_16, CBUF_BANK_WIDTH_64, CBUF_BANK_DEPTH_512",
        product="stripe",
        macs_per_cycle=64 * 32,
        bytes_of={"cbuf": 16 * 512 * 64},
        banks_of={"cbuf": 16},
    ),
    "ethos_u_like": Figures(
        source="ethos-u-vela 5.2, architecture_features.py: Ethos_U55_256 has 256 products a "
        "cycle and 48 banks of SHRAM, 2 of them not in use, of 1024 bytes",
        product="convolve",
        macs_per_cycle=256,
        bytes_of={},
    ),
    "qkv_attention": Figures(
        source="act-compiler/act, tutorials/asplos26/exercise3/solution/QKV.py: d1 128 x 64 bf16, "
        "d2 64 x 64 bf16; a row a cycle is an assumption",
        product="gemm",
        macs_per_cycle=64 * 64,
        bytes_of={"d1": 128 * 64 * 2, "d2": 64 * 64 * 2},
    ),
    "vta_isa": Figures(
        source="apache/tvm-vta, config/vta_config.json: LOG_BLOCK 4, LOG_INP_BUFF_SIZE 15, "
        "LOG_WGT_BUFF_SIZE 18, LOG_ACC_BUFF_SIZE 17",
        product="gemm",
        macs_per_cycle=256,
        bytes_of={"inp": 1 << 15, "wgt": 1 << 18, "acc": 1 << 17},
    ),
}


def machine_names() -> list[str]:
    return sorted(FIGURES)


def test_every_shipped_set_has_figures_and_a_name_of_its_own() -> None:
    assert sorted(available_instruction_sets()) == machine_names()
    assert not set(available_instruction_sets()) & set(available_targets())
    assert [load_instruction_set(name).name for name in machine_names()] == machine_names()


@pytest.mark.parametrize("name", machine_names())
def test_capacities_and_banks_are_the_published_ones(name: str) -> None:
    machine, figures = load_instruction_set(name), FIGURES[name]
    capacities = {memory: machine.memories[memory].capacity_bytes for memory in figures.bytes_of}
    assert capacities == figures.bytes_of
    assert {m: machine.memories[m].banks for m in figures.banks_of} == figures.banks_of


@pytest.mark.parametrize("name", machine_names())
def test_products_a_cycle_are_the_published_ones(name: str) -> None:
    product = load_instruction_set(name).instructions[FIGURES[name].product]
    once = product.occupied_cycles(dict.fromkeys(product.extents, 0))
    sizes = product.extents
    rate = math.prod(sizes.values()) / (product.occupied_cycles(sizes) - once)
    assert rate == pytest.approx(FIGURES[name].macs_per_cycle)


def test_the_parts_of_shram_are_the_banks_in_use() -> None:
    machine = load_instruction_set("ethos_u_like")
    assert sum(m.capacity_bytes or 0 for m in machine.row_memories()) == 46 * 1024


def test_vta_has_the_four_channels_of_its_modules() -> None:
    machine = load_instruction_set("vta_isa")
    assert machine.synchronization is Synchronization.CHANNELS
    assert {(c.sender, c.receiver) for c in machine.channels} == {
        ("load", "compute"),
        ("compute", "load"),
        ("compute", "store"),
        ("store", "compute"),
    }


def moves(machine: InstructionSet, source: MemoryKind, to: MemoryKind) -> list[IsaInstruction]:
    """Instructions with an input in one kind of memory and an output in another."""

    def has(instruction: IsaInstruction, names: tuple[str, ...], kind: MemoryKind) -> bool:
        places = [machine.memories.get(instruction.places[name].memory) for name in names]
        return any(place is not None and place.kind is kind for place in places)

    return [
        i
        for i in machine.instructions.values()
        if has(i, i.inputs, source) and has(i, i.outputs, to)
    ]


@pytest.mark.parametrize("name", machine_names())
def test_sets_load_store_and_say_what_they_emit(name: str) -> None:
    machine = load_instruction_set(name)
    assert moves(machine, MemoryKind.MAIN, MemoryKind.ROWS)
    assert moves(machine, MemoryKind.ROWS, MemoryKind.MAIN)
    silent = [i.name for i in machine.instructions.values() if not i.emit]
    # The steps of QKV's softmax that its last step stands for.
    assert silent == (["softmax_exp", "softmax_sum"] if name == "qkv_attention" else [])
    assert machine.warnings == ()


def test_gemmini_writes_its_macros() -> None:
    instructions = load_instruction_set("gemmini").instructions
    # Bits 31 and 30 of a local address: the accumulator, and addition to what it holds (README,
    # "Gemmini's Memory Addressing Scheme"); bit 29: whole sums.
    assert "3u << 30 | {C.row}" in instructions["compute"].emit
    assert "1u << 31 | {C.row}" in instructions["compute_first"].emit
    assert "5u << 29 | {S.row}" in instructions["mvout_sums"].emit
    assert "gemmini_extended_mvin({S.address}, {D.row}, {e}, {r})" in instructions["mvin_a"].emit


def acc_scale(value: int, scale: float) -> int:
    """Scale a sum as ``ACC_SCALE`` of include/gemmini_params.h does, step by step."""
    product = np.float32(value) * np.float32(scale)
    below = math.trunc(float(product))
    beyond = below - 1 if product < 0 else below + 1
    rest = abs(float(product) - below)
    rounded = below if rest < 0.5 else beyond if rest > 0.5 else below if below % 2 == 0 else beyond
    return max(-128, min(127, rounded))


@pytest.mark.parametrize("name, floor", [("mvout", None), ("mvout_relu", 0)])
def test_gemmini_scales_sums_as_its_macro_does(name: str, floor: int | None) -> None:
    computation = load_instruction_set("gemmini").instructions[name].computation
    rng = np.random.default_rng(3)
    # Halves, which go to the even neighbour, and sums of every size.
    for scale in (0.5, 0.25, 0.0173, 3e-5):
        shape = computation.operand("S").shape
        small, large = rng.integers(-600, 600, shape), rng.integers(-(2**31), 2**31, shape)
        sums = np.where(rng.random(shape) < 0.7, small, large).astype(np.int32)
        result = interpret(computation, {"S": sums, "s": np.array(scale, np.float32)})
        floored = sums if floor is None else np.maximum(sums, floor)
        expected = [acc_scale(int(value), scale) for value in floored.reshape(-1)]
        assert result.reshape(-1).tolist() == expected


def text_of(name: str) -> set[str]:
    machine = load_instruction_set(name)
    return {str(i.computation) for i in machine.instructions.values()}


@pytest.mark.parametrize("operation", ["exp(", "erf(", "rsqrt(", "max=", "int8(", " / "])
def test_the_tpu_like_computes_what_networks_need(operation: str) -> None:
    assert any(operation in text for text in text_of("tpu_like"))


@pytest.mark.parametrize("name", ["npu", "dsp"])
def test_examples_are_read_without_a_warning(name: str) -> None:
    example = load_instruction_set(EXAMPLES / f"{name}.toml")
    assert example.name == name
    assert not example.warnings
    assert all(i.emit.startswith(f"{name}_") for i in example.instructions.values())

"""A configuration as a hardware specification: the TOML file that :mod:`machine` reads."""

from __future__ import annotations

from cpembed.targets.vta.config import VtaConfig
from cpembed.targets.vta.isa import Memory
from cpembed.targets.vta.timing import MemorySystem

_TEXT = """\
# A configuration of VTA: LOG_BATCH {config.log_batch}, LOG_BLOCK {config.log_block}, \
int8 inputs and weights, int32 accumulators;
# LOG_UOP_BUFF {config.log_uop_buff}, LOG_INP_BUFF {config.log_inp_buff}, \
LOG_WGT_BUFF {config.log_wgt_buff}, LOG_ACC_BUFF {config.log_acc_buff}.

name = "{name}"
description = "VTA GEMM core, {batch}x{block}x{block}, int8 x int8 -> int32"
source = "made by the family vta; what a VTA is: VTA hardware repository (apache/tvm-vta)"
backend = "vta"

[instruction]
expression = "C[x,y] += A[x,z] * B[y,z]"

[instruction.axes]
x = {batch}
y = {block}
z = {block}

[operands.A]
dtype = "int8"
scope = "vta.inp"
tile = ["x", "z"]
alignment_bytes = {inp}

[operands.B]
dtype = "int8"
scope = "vta.wgt"
tile = ["y", "z"]
alignment_bytes = {wgt}

[operands.C]
dtype = ["int32", "int8"]
scope = "vta.acc"
tile = ["x", "y"]
alignment_bytes = {acc}

[memories."vta.inp"]
capacity_bytes = {inp_buff}

[memories."vta.wgt"]
capacity_bytes = {wgt_buff}

[memories."vta.acc"]
capacity_bytes = {acc_buff}

[memories."vta.uop"]
holds = "micro-ops: the indices of the tiles that a GEMM or ALU instruction takes"
capacity_bytes = {uop_buff}

[machine]
clock_mhz = {clock_mhz}
bus_bits = {memory.bus_bits}
burst_beats = {memory.burst_beats}
dram_delay_cycles = {memory.dram_delay_cycles}
"""


def specification(config: VtaConfig, memory: MemorySystem, clock_mhz: float) -> str:
    """Of int8 factors and int32 sums, stored as int8."""
    sizes = {
        f"{m.name.lower()}_buff": f"{config.elements(m) * config.element_bytes(m):_}"
        for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    }
    logs = (config.log_inp_buff, config.log_wgt_buff, config.log_acc_buff, config.log_uop_buff)
    return _TEXT.format(
        config=config,
        memory=memory,
        name=f"vta_{config.batch}x{config.block}x{config.block}_{'_'.join(map(str, logs))}",
        batch=config.batch,
        block=config.block,
        inp=config.element_bytes(Memory.INP),
        wgt=config.element_bytes(Memory.WGT),
        acc=config.element_bytes(Memory.ACC),
        clock_mhz=int(clock_mhz) if clock_mhz == int(clock_mhz) else clock_mhz,
        **sizes,
    )

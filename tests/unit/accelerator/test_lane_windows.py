"""Windows whose columns lie in the lanes of a row, as in planar images."""

from __future__ import annotations

import random
import tomllib

import numpy as np
import pytest

from cpembed.accelerator.executor import execute
from cpembed.accelerator.operator_search import OperatorSearch
from cpembed.accelerator.proof import prove
from cpembed.accelerator.workload import workload_specification
from cpembed.hw.isa_reader import read_instruction_set
from cpembed.workloads.naming import parse_workload
from tests.compilers import needs_executor
from tests.unit.accelerator.toys import random_arrays

pytestmark = needs_executor

MACHINE = """
name = "planar"
description = "images by planes, columns of a line in the lanes of a row"
source = "made up"
known = "assumed"
clock_mhz = 1000
units = ["dma", "engine"]
[memories.dram]
kind = "main"
bytes_per_cycle = 16
[memories.image]
rows = 1024
row_bytes = 32
[memories.kernels]
rows = 1024
row_bytes = 8
[memories.sums]
rows = 64
row_bytes = 64
[[instructions]]
name = "load"
unit = "dma"
expression = "D[c,h,w] = S[c,h,w]"
axes = { c = { max = 8 }, h = { max = 32 }, w = { max = 32 } }
operands.D = { memory = "image", dtype = "int8", rows = ["c", "h"], lanes = ["w"], stride = { c = "any" } }
operands.S = { memory = "dram", dtype = "int8" }
cycles = { "1" = 2, "c*h" = 1 }
[[instructions]]
name = "load_kernels"
unit = "dma"
expression = "D[r,k] = S[r,k]"
axes = { r = { max = 64 }, k = { max = 8 } }
operands.D = { memory = "kernels", dtype = "int8", rows = ["r"], lanes = ["k"] }
operands.S = { memory = "dram", dtype = "int8" }
[[instructions]]
name = "clear"
unit = "engine"
expression = "C[k,p,q] = 0"
axes = { k = { max = 8 }, p = { max = 4 }, q = { max = 16 } }
operands.C = { memory = "sums", dtype = "int32", rows = ["k", "p"], lanes = ["q"], stride = { k = 4 } }
[[instructions]]
name = "convolve"
unit = "engine"
expression = "C[k,p,q] += A[c,STEP*p+r,STEP*q+s] * W[c,r,s,k]"
axes = { k = { max = 8 }, p = { max = 4 }, q = { max = COLUMNS }, c = { max = 8 }, r = { max = 3 }, s = { max = 3 } }
operands.C = { memory = "sums", dtype = "int32", rows = ["k", "p"], lanes = ["q"], stride = { k = 4 } }
operands.A.memory = "image"
operands.A.dtype = "int8"
operands.A.dimensions = ["c", "h", "w"]
operands.A.rows = ["c", "h"]
operands.A.lanes = ["w"]
operands.A.stride = { c = "any" }
operands.A.any_lane = true
operands.W = { memory = "kernels", dtype = "int8", rows = ["c", "r", "s"], lanes = ["k"] }
cycles = { "1" = 2, "c*r*s" = 1 }
[[instructions]]
name = "store"
unit = "dma"
expression = "D[k,p,q] = C[k,p,q]"
axes = { k = { max = 8 }, p = { max = 4 }, q = { max = 16 } }
operands.D = { memory = "dram", dtype = "int32" }
operands.C = { memory = "sums", dtype = "int32", rows = ["k", "p"], lanes = ["q"], stride = { k = 4 } }
"""  # noqa: E501


@pytest.mark.parametrize("seed", range(6))
def test_a_convolution_reads_its_columns_in_lanes(seed: int) -> None:
    draw = random.Random(seed)
    step, size = draw.choice([1, 2]), draw.choice([1, 2, 3])
    height, width = draw.randint(4, 12), draw.randint(4, 40)
    columns = 16 if step == 1 else 14
    text = MACHINE.replace("STEP", str(step)).replace("COLUMNS", str(columns))
    machine = read_instruction_set(tomllib.loads(text), "planar.toml")
    words = f"n=1 c={draw.randint(1, 12)} h={height} w={width} k={draw.randint(1, 12)}"
    words += f" r={size} s={size} stride={step} pad={size // 2}"
    layer = workload_specification(parse_workload(["conv2d", *words.split()]))
    plans = OperatorSearch(layer, machine).plans()
    assert not isinstance(plans, str), f"{words}: {plans}"
    (plan,) = plans
    program = plan.program()
    assert prove(program).holds, words
    # The windows are read as they are: one execution covers several columns and taps.
    (convolution,) = (m for m in plan.problem.matches if m.instruction.name == "convolve")
    taps = size * size * -(-height // step) * -(-width // step)
    assert convolution.executions < taps, str(convolution)
    inputs = random_arrays(layer, seed)
    buffers = {n: t.buffer(inputs.get(n)) for n, t in program.tensors.items()}
    run = execute(program, buffers, 0)
    (output,) = layer.outputs
    actual = program.tensors[output].array(run.buffers[output])
    np.testing.assert_array_equal(actual, layer.evaluate(inputs)[output])

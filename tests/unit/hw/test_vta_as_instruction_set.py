"""VTA described as an instruction set computes what the simulator of its back end computes.

Instructions are executed by what the description says and nothing else: the statement at the sizes
of an execution, on elements at the places of the operands.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpembed.hw.isa import MemoryKind, OperandPlace, StrideSource
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.interpreter import interpret
from cpembed.ir.parser import parse_computation
from cpembed.targets.vta.assembler import assemble
from cpembed.targets.vta.simulator import simulate

pytest.importorskip("tvm", reason="the simulator compiles VTA's kernels with TVM")

Array = NDArray[Any]
MACHINE = load_instruction_set("vta_isa")


@dataclass(frozen=True)
class At:
    """Place of an operand: a tensor or the first row, and the strides that are arguments."""

    base: int | str
    strides: Mapping[str, int] = field(default_factory=dict[str, int])


class Memories:
    """Contents of all memories: lanes of rows by memory, and flat tensors by name."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = {name: array.reshape(-1).copy() for name, array in tensors.items()}
        types = {"inp": "int8", "wgt": "int8", "acc": "int32"}
        self.rows = {
            name: np.zeros((memory.rows, memory.lanes(types[name])), types[name])
            for name, memory in MACHINE.memories.items()
            if memory.kind is MemoryKind.ROWS
        }

    def elements(
        self, place: OperandPlace, shape: tuple[int, ...], at: At
    ) -> tuple[Array, tuple[Array, ...]]:
        """Return the array that holds an operand, and the indices of its elements there."""
        index = dict(zip(place.dimensions, np.indices(shape), strict=True))
        if isinstance(at.base, str):
            strides = {**place.strides, **at.strides}
            offset = sum(index[name] * int(strides[name]) for name in place.dimensions)
            return self.tensors[at.base], (np.asarray(offset),)
        sizes = dict(zip(place.dimensions, shape, strict=True))
        row, inside = np.full(shape, at.base), 1
        for digit in reversed(place.rows):
            stride = at.strides.get(str(digit), place.strides[str(digit)])
            factor = inside if stride is StrideSource.DENSE else int(stride)
            row = row + index[digit.axis] * factor
            inside *= sizes[digit.axis]
        lane = np.zeros(shape, np.int64)
        for digit in place.lanes:
            lane = lane * sizes[digit.axis] + index[digit.axis]
        return self.rows[place.memory], (row, lane)

    def execute(self, name: str, sizes: Mapping[str, int], **operands: At | int) -> None:
        """Execute an instruction; an integer is the value of an immediate."""
        instruction = MACHINE.instructions[name]
        statement = instruction.computation
        computation = parse_computation(
            str(statement),
            {**instruction.extents, **sizes},
            dtypes={operand.name: operand.dtype for operand in statement.operands},
            takes_constants=True,
        )
        inputs: dict[str, Array] = {}
        for operand in computation.inputs:
            at = operands[operand.name]
            if isinstance(at, At):
                array, where = self.elements(instruction.places[operand.name], operand.shape, at)
                inputs[operand.name] = array[where]
            else:
                inputs[operand.name] = np.array(at, numpy_dtype(operand.dtype))
        output = computation.output
        result = interpret(computation, inputs)
        at = operands[output.name]
        assert isinstance(at, At)
        array, where = self.elements(instruction.places[output.name], output.shape, at)
        if instruction.reads_outputs:
            combine = {"add": np.add, "max": np.maximum, "min": np.minimum}
            result = combine[computation.statement.reduction or ""](array[where], result)
        array[where] = result


ROWS, BLOCKS, DEPTH = 3, 2, 2
"""Rows of inputs, blocks of outputs, and blocks of inputs of the product."""

LOOPS = "outer=3 inner=2 dst.outer=2 dst.inner=1 src.outer=2 src.inner=1"
"""Loops over the accumulators of all rows and blocks."""

PROGRAM = """\
.vta 1
.tensor A role=input dtype=int8 shape=3x2x16
.tensor B role=weight dtype=int8 shape=2x2x16x16
.tensor R role=input dtype=int32 shape=3x2x16
.tensor V role=input dtype=int32 shape=2x16
.tensor C role=output dtype=int8 shape=3x2x16

.uop depth
dst=8 src=5 wgt=3
dst=9 src=5 wgt=5
dst=10 src=7 wgt=3
dst=11 src=7 wgt=5
dst=12 src=9 wgt=3
dst=13 src=9 wgt=5

.uop single
dst=8 src=40
dst=8 src=8
dst=8 src=50

.code
load uop sram=0 dram=depth y=1 x=6 x_stride=6
load uop sram=6 dram=single y=1 x=3 x_stride=3
load acc sram=40 dram=R y=3 x=2 x_stride=2
load acc sram=50 dram=V y=3 x=2 x_stride=0
gemm uop_begin=6 uop_end=7 outer=3 inner=2 dst.outer=2 dst.inner=1 reset push.prev
load inp sram=5 dram=A y=3 x=2 x_stride=2 pop.next
load wgt sram=3 dram=B y=2 x=2 x_stride=2 push.next
gemm uop_begin=0 uop_end=6 outer=2 inner=1 src.outer=1 wgt.outer=1 pop.prev
alu add uop_begin=6 uop_end=7 LOOPS
alu max uop_begin=8 uop_end=9 LOOPS
alu OP uop_begin=7 uop_end=8 LOOPS immediate=IMM
alu shr uop_begin=7 uop_end=8 LOOPS immediate=5 push.next
store out sram=8 dram=C y=3 x=2 x_stride=2 pop.prev push.prev
load uop sram=0 dram=0 y=0 x=0 x_stride=0 pop.next
finish
"""


def by_description(tensors: Mapping[str, Array], operation: str, immediate: int) -> Array:
    """Execute the same program as the description says."""
    memories = Memories({**tensors, "C": np.zeros((ROWS, BLOCKS, 16), np.int8)})
    loops = {"o": ROWS, "i": BLOCKS}
    sums = At(8, {"o": 2, "i": 1})
    memories.execute("load_acc", {"h": 3, "w": 2}, D=At(40), S=At("R", {"h": 32}))
    memories.execute("load_acc_row", {"h": 3, "w": 2}, D=At(50), S=At("V"))
    memories.execute("gemm_reset", loops, C=sums)
    memories.execute("load_inp", {"h": 3, "w": 2}, D=At(5), S=At("A", {"h": 32}))
    memories.execute("load_wgt", {"h": 2, "w": 2}, D=At(3), S=At("B", {"h": 512}))
    memories.execute(
        "gemm",
        {**loops, "u": DEPTH, "w": 1},
        C=sums,
        A=At(5, {"o": 2, "u": 1, "w": 0}),
        B=At(3, {"i": 2, "u": 1, "w": 0}),
    )
    memories.execute("alu_add", loops, D=sums, S=At(40, {"o": 2, "i": 1}))
    memories.execute("alu_max", loops, D=sums, S=At(50, {"o": 2, "i": 1}))
    memories.execute(f"alu_{operation}_immediate", loops, D=sums, S=sums, v=immediate)
    memories.execute("alu_shr_immediate", loops, D=sums, S=sums, v=5)
    memories.execute("store", {"h": 3, "w": 2}, D=At("C", {"h": 32}), S=At(8))
    return memories.tensors["C"]


@pytest.mark.parametrize(
    "operation, immediate, seed",
    [
        (op, imm, seed)
        for seed, (op, imm) in enumerate(itertools.product(("max", "min", "add"), (-300, 0, 4000)))
    ],
)
def test_programs_leave_what_the_simulator_leaves(
    operation: str, immediate: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tensors = {
        "A": rng.integers(-128, 128, (ROWS, DEPTH, 16), np.int8),
        "B": rng.integers(-128, 128, (BLOCKS, DEPTH, 16, 16), np.int8),
        "R": rng.integers(-(2**20), 2**20, (ROWS, BLOCKS, 16), np.int32),
        "V": rng.integers(-(2**17), 2**14, (BLOCKS, 16), np.int32),
    }
    program = assemble(
        PROGRAM.replace("LOOPS", LOOPS).replace("OP", operation).replace("IMM", str(immediate))
    )
    dram = program.dram.copy()
    for name, array in tensors.items():
        tensor = program.tensors[name]
        dram[tensor.offset : tensor.offset + tensor.size_bytes] = array.reshape(-1).view(np.uint8)
    left = simulate(program, dram=dram)
    tensor = program.tensors["C"]
    expected = left[tensor.offset : tensor.offset + tensor.size_bytes].view(np.int8)
    np.testing.assert_array_equal(by_description(tensors, operation, immediate), expected)
    # Not all zeros, all ones or all cut off alike.
    assert len(set(expected.tolist())) > 10

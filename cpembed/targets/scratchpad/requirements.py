"""What a specification has to say so that its kernels can be made and executed, and the axes of its
instruction by what they move."""

from __future__ import annotations

from collections.abc import Mapping

from cpembed.errors import SpecError
from cpembed.hw.instruction import HardwareSpec, Instruction
from cpembed.hw.machine import Hierarchy
from cpembed.hw.schema import Key, spec_error
from cpembed.ir.dtypes import size_bytes

LANES_BYTES = 16
"""Of a vector of the mesh's registers: four elements of float32."""

BASE_BYTES = 256
"""Arrays in main memory begin at multiples of it."""

Lanes = tuple[str, str, str]
"""The instruction's axes: of A and C, of B and C, of A and B; empty where there is none."""


def lanes_of(spec: HardwareSpec, found: Hierarchy) -> Lanes:
    """Raises :class:`SpecError` for what is no product of two operands, and for a machine that
    does not execute it as ``gemm`` of ``scratchpad.h`` says."""
    instruction = spec.instruction
    lanes = _lanes(spec)
    sized = [axis.name for axis in instruction.axes if axis.largest is not None]
    if sized and ("" in lanes or len(sized) < len(instruction.axes)):
        raise _error(
            spec,
            ("instruction", "axes"),
            "a primitive of any size is a product of matrices, C[x,y] += A[x,z] * B[z,y]: give all "
            "three axes as { multiple, max }, or none",
        )
    if found.mesh is not None and not sized:
        raise _error(
            spec,
            ("machines", found.name, "mesh"),
            "an instruction of fixed size is executed by one element: give its axes as "
            "{ multiple, max }, or leave the mesh out",
        )
    _check_transfers(spec, found)
    if sized:
        _check_mesh(spec, found, lanes)
        _check_vectors(spec, found, lanes)
    return lanes


def _error(spec: HardwareSpec, key: Key, problem: str) -> SpecError:
    return spec_error(spec.path, key, problem)


def _lanes(spec: HardwareSpec) -> Lanes:
    computation = spec.instruction.computation
    key = ("instruction", "expression")
    if len(computation.inputs) != 2 or len(computation.outputs) != 1:
        raise _error(spec, key, "a kernel of boxes multiplies two operands into one")
    one, other, result = map(set[str], _axes(spec.instruction).values())
    kinds = one & result - other, other & result - one, one & other - result
    if any(len(kind) > 1 for kind in kinds):
        raise _error(spec, key, "several axes move the same operands; allowed: one of each kind")
    first, second, depth = (next(iter(kind), "") for kind in kinds)
    return first, second, depth


def _axes(instruction: Instruction) -> Mapping[str, tuple[str, ...]]:
    """By operand, the output last."""
    computation = instruction.computation
    return {
        operand.name: tuple(
            name for index in computation.access(operand.name).index for name in index.iterators
        )
        for operand in (*computation.inputs, computation.output)
    }


def _check_transfers(spec: HardwareSpec, found: Hierarchy) -> None:
    """Boxes begin and end at any element."""
    for name, held in spec.instruction.memory.items():
        element = min(map(size_bytes, spec.instruction.dtypes[name]))
        if element % held.alignment_bytes:
            raise _error(
                spec,
                ("operands", name, "alignment_bytes"),
                f"{held.alignment_bytes} is more than an element of {element} bytes, and boxes "
                "begin at any element; allowed: what divides an element",
            )
    for memory in found.memories.values():
        if memory.granule_bytes > BASE_BYTES or BASE_BYTES % memory.granule_bytes:
            raise _error(
                spec,
                ("machines", found.name, "memories", memory.name, "granule_bytes"),
                f"{memory.granule_bytes} is not allowed; allowed: a divisor of {BASE_BYTES}, at "
                "multiples of which operands begin",
            )


def _check_mesh(spec: HardwareSpec, found: Hierarchy, lanes: Lanes) -> None:
    """Each element holds block (row, column) of all three matrices."""
    if found.mesh is None:
        return
    x, y, z = lanes
    names = list(_axes(spec.instruction))
    for name, right in zip(names, ((x, z), (z, y), (x, y)), strict=True):
        if found.mesh.cut[name] != right:
            raise _error(
                spec,
                ("machines", found.name, "mesh", "cut", name),
                "rows and columns cut a product into blocks; allowed: "
                f'["{right[0]}", "{right[1]}"]',
            )
    if found.mesh.rows != found.mesh.columns:
        raise _error(
            spec,
            ("machines", found.name, "mesh"),
            f"rows and columns cut {z} into {found.mesh.rows} and {found.mesh.columns} parts; make "
            "them equal",
        )


def _check_vectors(spec: HardwareSpec, found: Hierarchy, lanes: Lanes) -> None:
    """The vectorised dimension of an element's block is a multiple of a vector."""
    instruction = spec.instruction
    output = instruction.computation.output.name
    vector = LANES_BYTES // min(map(size_bytes, instruction.dtypes[output]))
    rows = 1 if found.mesh is None else found.mesh.rows
    if instruction.axis(lanes[0]).maximum % (rows * max(1, vector)):
        raise _error(
            spec,
            ("instruction", "axes", lanes[0], "multiple"),
            f"{lanes[0]}, of {output} and the first factor, is computed in vectors of {vector} "
            f"elements; allowed: multiples of {rows * vector}",
        )

"""A person's program of an accelerator, run on data and compared with an expression."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.accelerator.assembly_reader import LARGEST_TEXT, parse
from cpembed.accelerator.executor import LARGEST_MEMORY, Run, execute
from cpembed.accelerator.program import Array, MainTensor, Program
from cpembed.errors import ProgramError, WorkloadError
from cpembed.files import read_regular
from cpembed.hw.isa import InstructionSet
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import as_stored, as_typed, dtype_info, is_integer, numpy_dtype
from cpembed.ir.grammar import parse_body
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_array, reference
from cpembed.provenance import Provenance
from cpembed.steps import PhaseProgress, silent


@dataclass(frozen=True)
class Comparison:
    """Comparison of an output with an expression.

    Attributes
    ----------
    expression : str
    output : str
        Tensor that was compared.
    elements : int
        Elements compared.
    differences : int
        Elements that differ: of integers, in any bit; of floats, by more than the rounding of a
        few operations.
    largest_error : float
        Largest difference of two elements.
    first : str
        Place and values of the first element that differs; empty if none does.
    """

    expression: str
    output: str
    elements: int
    differences: int
    largest_error: float
    first: str = ""


@dataclass(frozen=True)
class Emulation:
    """A program that ran without a fault.

    ``outputs`` are the tensors that are no inputs and no constants, in their logical shapes.
    """

    program: Program
    run: Run
    outputs: Mapping[str, Array]
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``cpembed emulate --json`` prints."""
        document: dict[str, Any] = {
            "program": self.program.name,
            "machine": self.program.machine.name,
            "provenance": str(Provenance.EMULATED),
            **self.run.to_json(),
        }
        if self.comparison is not None:
            document["comparison"] = vars(self.comparison)
        return document


def read_assembly(path: Path, machine: InstructionSet) -> Program:
    """Read a program from a file.

    Raises :class:`~cpembed.errors.ProgramError` with line and column if it is wrong.
    """
    try:
        source = read_regular(path, LARGEST_TEXT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProgramError(f"{path}: not a text in UTF-8: give the assembly") from None
    return parse(source, machine, str(path))


def emulate(
    program: Program,
    inputs: Mapping[str, Path] | None = None,
    *,
    seed: int = 0,
    against: str | None = None,
    progress: PhaseProgress = silent,
) -> Emulation:
    """Run a program on files or random data.

    Parameters
    ----------
    program
        The program.
    inputs
        Files in numpy's format (``.npy``) with the elements of inputs and constants, in their
        logical shapes. Others are random: integers of all values, floats in [-1, 1].
    seed
        Seed of the data, and of the order of execution of a machine with channels.
    against
        Expression of an output over other tensors of the program, such as
        ``C[x,y] += A[x,z] * B[z,y]``, that the output is compared with.
    progress
        Progress of :func:`~cpembed.accelerator.executor.execute`.

    Raises
    ------
    ExecutionFault
        If the program does what its machine leaves undefined.
    ProgramError
        If a file is wrong, or the program.
    WorkloadError
        If the expression is wrong.
    """
    files = dict(inputs or {})
    for name in files:
        if name not in program.tensors or not program.tensors[name].is_loaded:
            names = " ".join(n for n, t in program.tensors.items() if t.is_loaded)
            raise ProgramError(
                f"{program.name}: {name} is no input or constant: use {names or 'none'}"
            )
    computation = None if against is None else expression_of(program, against)
    generator = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, tensor in program.tensors.items():
        if tensor.is_loaded:
            random = random_array(tensor.dtype, tensor.shape, generator)
            arrays[name] = _from_file(files[name], tensor) if name in files else random
    buffers = {name: program.tensors[name].buffer(array) for name, array in arrays.items()}
    run = execute(program, buffers, seed, progress)
    outputs = {
        name: tensor.array(run.buffers[name])
        for name, tensor in program.tensors.items()
        if name not in arrays
    }
    comparison = None
    if computation is not None and against is not None:
        comparison = _compare(computation, against, {**outputs, **arrays})
    return Emulation(program, run, outputs, comparison)


def expression_of(program: Program, text: str) -> Computation:
    """Return an expression over the tensors of a program, with the extents of their shapes.

    An axis has the extent of a dimension that it alone indexes. Reads beyond a tensor are zero, as
    those of a padded convolution.

    Raises :class:`~cpembed.errors.WorkloadError` if a tensor, or the extent of an axis, is missing.
    """
    body = parse_body(text)
    extents: dict[str, int] = {}
    for statement in body.statements:
        for access in (statement.store, *statement.reads):
            tensor = program.tensors.get(access.operand)
            if tensor is None:
                raise WorkloadError(
                    f"expression: {program.name} has no tensor {access.operand}: use "
                    f"{' '.join(program.tensors)}"
                )
            if len(access.index) != len(tensor.shape):
                raise WorkloadError(
                    f"expression: {access} has {len(access.index)} indices, and tensor "
                    f"{tensor.name} {len(tensor.shape)} dimensions"
                )
            for index, size in zip(access.index, tensor.shape, strict=True):
                axis = index.single_iterator
                if axis is not None:
                    extents.setdefault(axis, size)
    for axis, _ in body.iterators:
        if axis not in extents:
            raise WorkloadError(
                f"expression: {axis} alone indexes no dimension, so that its extent is unknown: "
                "write the expression with an axis of its own for each dimension of the weights"
            )
    names = body.operands
    return parse_computation(
        text,
        {axis: extents[axis] for axis, _ in body.iterators},
        dtypes={name: program.tensors[name].dtype for name in names},
        shapes={name: program.tensors[name].shape for name in names},
        zero_outside=body.inputs,
    )


def _compare(computation: Computation, text: str, arrays: Mapping[str, Array]) -> Comparison:
    output = computation.output
    expected = reference(computation, {o.name: arrays[o.name] for o in computation.inputs})
    actual = arrays[output.name]
    if is_integer(output.dtype):
        differs = actual != expected
    else:
        # Sums of floats have no stated order, so that some roundings may differ.
        precision = float(np.finfo(np.float32).eps)
        if dtype_info(output.dtype).bits < 32:
            precision = 2.0 ** -{"float16": 10, "bfloat16": 7}.get(output.dtype, 2)
        wide = expected.astype(np.float64)
        limit = 4 * precision * (np.abs(wide) + float(np.max(np.abs(wide), initial=0.0)))
        differs = ~(np.abs(actual.astype(np.float64) - wide) <= limit)
    errors = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    first = ""
    if differs.any():
        place = np.unravel_index(int(np.argmax(differs)), actual.shape)
        index = [int(i) for i in place]
        first = f"{output.name}{index} is {actual[place]} instead of {expected[place]}"
    return Comparison(
        text,
        output.name,
        actual.size,
        int(np.count_nonzero(differs)),
        float(np.nan_to_num(errors, nan=np.inf).max(initial=0.0)),
        first,
    )


def _from_file(path: Path, tensor: MainTensor) -> Array:
    """Read a tensor, whose shape and type are checked before any element is read."""
    content = read_regular(path, LARGEST_MEMORY)
    stored = as_stored(np.zeros(0, numpy_dtype(tensor.dtype))).dtype
    try:
        file = io.BytesIO(content)
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
        if shape != tensor.shape or dtype not in (numpy_dtype(tensor.dtype), stored):
            raise ProgramError(
                f"{path}: {dtype}{list(shape)}, and {tensor.name} is {tensor.dtype}"
                f"{list(tensor.shape)}: give it as that"
            )
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except ProgramError:
        raise
    except Exception as error:  # numpy raises anything for a damaged file.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ProgramError(
            f"{path}: not an array of numpy: {reason}; write it by numpy.save"
        ) from None
    array = as_typed(array, tensor.dtype)
    if is_integer(tensor.dtype) and array.size:
        low, high = dtype_info(tensor.dtype).integer_range
        if int(array.min()) < low or int(array.max()) > high:
            raise ProgramError(f"{path}: values beyond {low} to {high}, those of {tensor.dtype}")
    return array

"""A TensorIR function of several blocks as a product with bias, activation and conversions."""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import s_tir, tirx

from cpembed.codegen.epilogue import BIAS, RESIDUAL, SCALE, Epilogue, channel_axes
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.expressions import stored_expression
from cpembed.integrations.tvm.recognise import (
    Recognised,
    buffers_of,
    constant_size,
    inline_blocks,
    read_block,
)
from cpembed.integrations.tvm.stored import Stored, Term, steps_of, stored
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype

Array = NDArray[Any]

OPERAND = "operand"
"""Prefix of operands' names, which end in their numbers."""


@dataclass(frozen=True, eq=False)
class Fused:
    """Product and the epilogue of its sums.

    Parameters
    ----------
    recognised
        Computation of the sums.
    operands
        Number of the function's parameter for each operand of the computation.
    stored
        Epilogue; its terms refer to parameters by number.
    channels
        Dimensions of the output along which vectors of the epilogue vary.
    shape, dtype
        Shape and element type of the function's output.
    """

    recognised: Recognised
    operands: Mapping[str, int]
    stored: Stored
    channels: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def computation(self) -> Computation:
        return self.recognised.computation

    @property
    def epilogue(self) -> Epilogue | None:
        return self.stored.epilogue

    def vectors(self, constants: Mapping[int, Array]) -> dict[str, int | Array]:
        """Return the additional inputs of the epilogue: the number of a parameter, or an array.

        ``constants`` are the values of constant parameters, by number. Raises
        :class:`WorkloadError` for an input that would have to be computed at run time.
        """
        inputs: dict[str, int | Array] = {}
        scale = () if self.stored.scale is None else (self.stored.scale,)
        terms = {BIAS: self.stored.bias, SCALE: scale}
        epilogue = self.epilogue
        if epilogue is None:
            return inputs
        if epilogue.chain is not None:
            terms |= {
                name: (term,)
                for name, term in zip(epilogue.chain.names, self.stored.vectors, strict=True)
            }
        for name in epilogue.vectors:
            dtype = epilogue.vector_dtype(name, self.computation.output.dtype)
            inputs[name] = self._vector(terms[name], numpy_dtype(dtype), constants)
        if self.stored.residual is not None:
            inputs[RESIDUAL] = self.stored.residual.parameter
        self._check_sign(inputs.get(SCALE))
        return inputs

    def _vector(
        self, terms: Sequence[Term], dtype: Any, constants: Mapping[int, Array]
    ) -> int | Array:
        first = terms[0]
        if len(terms) == 1 and not first.is_number and first.parameter not in constants:
            # A kernel reads a vector of one element for each channel, and repeats nothing.
            if first.axes != tuple(axis for axis in self.channels if self.shape[axis] > 1):
                raise WorkloadError("a variable vector has fewer elements than channels")
            return first.parameter
        shape = [self.shape[axis] for axis in self.channels]
        # Several constants are one vector of the kernel: they are added now.
        total = np.zeros(shape, dtype)
        for term in terms:
            total = total + self._values(term, dtype, constants)
        return total.astype(dtype).reshape(-1)

    def _values(self, term: Term, dtype: Any, constants: Mapping[int, Array]) -> Array:
        if term.is_number:
            return np.asarray(term.number, dtype)
        if term.parameter not in constants:
            raise WorkloadError("several vectors are added, not all of them constants")
        shape = [self.shape[a] if a in term.axes else 1 for a in self.channels]
        return constants[term.parameter].reshape(shape)

    def _check_sign(self, scale: int | Array | None) -> None:
        """Raise an error if sums are rectified before a scale that may be negative."""
        if not self.stored.positive:
            return
        # The epilogue rectifies after scaling, which is equal only if no sign changes.
        if not isinstance(scale, np.ndarray) or not (scale > 0).all():
            raise WorkloadError("negative sums become 0 before a scale that may be negative")


def recognise_fused(
    function: tirx.PrimFunc, name: str = "tensorir", *, chains: bool = False
) -> Fused:
    """Return the product of a function with its epilogue, which a function of one block lacks.

    Parameters
    ----------
    function : tirx.PrimFunc
    name : str
        Name of the computation.
    chains : bool
        True to allow expressions of functions of floats, which are not computed bit for bit.

    Raises
    ------
    WorkloadError
        For a function that is none, or that no kernel's epilogue matches.
    """
    parameters = buffers_of(function, name)
    nests = _loop_nests(function, name)
    if len(nests) > 2:
        raise WorkloadError(f"{name}: has {len(nests)} blocks that compute, not one or two")
    sums = _written(nests[0])
    # Parameters that only the epilogue reads are terms of it.
    inputs = [p for p in parameters[:-1] if _reads(nests[0], p)]
    # Neutral names make equal products of a network equal computations: solved and tuned once.
    names = [f"{OPERAND}{number}" for number in range(len(inputs))]
    recognised = read_block(nests[0], [*inputs, sums], name, [*names, "sums"])
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    operands = {
        operand: numbers[parameter]
        for operand, parameter in zip(recognised.parameters, inputs, strict=False)
    }
    output = parameters[-1]
    shape = tuple(constant_size(size, f"{name}: a size of the output") for size in output.shape)
    channels = channel_dimensions(recognised)
    # A single nest stores its sums as they are.
    epilogue = Stored(None)
    if len(nests) > 1:
        epilogue = _epilogue(nests[1], sums, recognised, channels, shape, chains=chains)
    elif not sums.same_as(output):
        raise WorkloadError(f"{name}: its sums are not its output")
    return Fused(
        recognised, operands, _numbered(epilogue, numbers), channels, shape, str(output.dtype)
    )


def _epilogue(
    nest: Any,
    sums: Any,
    recognised: Recognised,
    channels: Sequence[int],
    shape: Sequence[int],
    *,
    chains: bool,
) -> Stored:
    """Return the epilogue that the loop nest of the output computes of the sums."""
    block = _block(nest)
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        raise WorkloadError("the block after the sums is no statement of one element")
    full = [axis for axis, size in enumerate(shape) if size > 1]
    try:
        steps = steps_of(block.body, sums)
        return stored(steps, recognised.computation.output.dtype, channels, full)
    except WorkloadError:
        if not chains:
            raise
    return stored_expression(block.body, sums, channels, full)


def _numbered(epilogue: Stored, numbers: Mapping[Any, int]) -> Stored:
    """Return an epilogue whose terms refer to parameters by number."""

    def numbered(term: Term | None) -> Term | None:
        if term is None or term.is_number:
            return term
        if term.parameter not in numbers:
            raise WorkloadError(f"{term.parameter.name} is computed within the function")
        return Term(numbers[term.parameter], term.axes)

    return replace(
        epilogue,
        bias=tuple(term for term in map(numbered, epilogue.bias) if term is not None),
        scale=numbered(epilogue.scale),
        residual=numbered(epilogue.residual),
        vectors=tuple(term for term in map(numbered, epilogue.vectors) if term is not None),
    )


def channel_dimensions(recognised: Recognised) -> tuple[int, ...]:
    """Return the dimensions of a function's output along which vectors of an epilogue vary.

    There are none if they would not be vectors in the output's order.
    """
    workload = recognised.computation
    if len(workload.inputs) < 2:
        return ()
    axes = list(channel_axes(workload))
    places = [index.single_iterator for index in workload.access(workload.output.name).index]
    channels: list[int] = []
    order: list[str] = []
    place = 0
    # A dimension of the output may be several of the computation, such as group and filter.
    for dimension, count in enumerate(recognised.output_split):
        parts = [name for name in places[place : place + count] if name in axes]
        place += count
        # Part of a dimension varies, and the rest does not: no vector has such strides.
        if parts and len(parts) != count:
            return ()
        if parts:
            channels.append(dimension)
            order += parts
    return tuple(channels) if order == axes else ()


def _loop_nests(function: tirx.PrimFunc, name: str) -> list[Any]:
    """Return the loop nests of the sums and of the output, with everything else inlined."""
    body = inline_blocks(function, name, keeps_sums=True).body
    body = body.block.body if isinstance(body, s_tir.SBlockRealize) else body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _block(nest: Any) -> Any:
    while isinstance(nest, tirx.For):
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        raise WorkloadError("a loop nest holds no single block: pass the function unscheduled")
    return nest.block


def _written(nest: Any) -> Any:
    writes = list(_block(nest).writes)
    if len(writes) != 1:
        raise WorkloadError(f"block {_block(nest).name_hint} writes {len(writes)} tensors, not one")
    return writes[0].source


def _reads(nest: Any, parameter: Any) -> bool:
    return any(region.source.same_as(parameter) for region in _block(nest).reads)

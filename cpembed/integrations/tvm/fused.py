"""A TensorIR function of several blocks as a computation with what follows it: a product, then
bias, activation and conversions, as TVM's fusion puts them into one function.
"""
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import ir, s_tir, tirx

from cpembed.codegen.epilogue import BIAS, RESIDUAL, SCALE, Epilogue, channel_axes
from cpembed.errors import WorkloadError
from cpembed.integrations.tvm.recognise import (
    Recognised,
    constant_size,
    read_block,
    reduces,
    vars_of,
)
from cpembed.integrations.tvm.steps import Term, steps_of
from cpembed.integrations.tvm.storing import Stored, stored
from cpembed.ir.computation import Computation
from cpembed.ir.dtypes import numpy_dtype

Array = NDArray[Any]


OPERAND = "operand"
"""What operands are called, with their numbers."""


@dataclass(frozen=True, eq=False)
class Fused:
    """A product and what is stored of its sums.

    ``operands`` gives, by operand of the computation, the number of the function's parameter that
    it is; terms of ``stored`` have such numbers as parameters. ``shape`` and ``dtype`` are those of
    the function's output; vectors move with its dimensions ``channels``.
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
        """What the epilogue takes beside the operands, by its names: the number of a parameter, or
        an array, of ``constants``, which are parameters whose values are known, and numbers.

        Raises :class:`WorkloadError` for what would have to be computed of what is not known.
        """
        found: dict[str, int | Array] = {}
        scale = () if self.stored.scale is None else (self.stored.scale,)
        terms = {BIAS: self.stored.bias, SCALE: scale}
        epilogue = self.epilogue
        if epilogue is None:
            return found
        for name in epilogue.vectors:
            dtype = epilogue.vector_dtype(name, self.computation.output.dtype)
            found[name] = self._vector(terms[name], numpy_dtype(dtype), constants)
        if self.stored.residual is not None:
            found[RESIDUAL] = self.stored.residual.parameter
        self._check_sign(found.get(SCALE))
        return found

    def _vector(
        self, terms: Sequence[Term], dtype: Any, constants: Mapping[int, Array]
    ) -> int | Array:
        first = terms[0]
        if len(terms) == 1 and not first.is_number and first.parameter not in constants:
            if first.axes != self._moving:
                raise WorkloadError(
                    "a vector that is not constant has fewer elements than channels"
                )
            return first.parameter
        shape = [self.shape[axis] for axis in self.channels]
        total = np.zeros(shape, dtype)
        for term in terms:
            total = total + self._values(term, dtype, constants)
        return total.astype(dtype).reshape(-1)

    @property
    def _moving(self) -> tuple[int, ...]:
        return tuple(axis for axis in self.channels if self.shape[axis] > 1)

    def _values(self, term: Term, dtype: Any, constants: Mapping[int, Array]) -> Array:
        if term.is_number:
            return np.asarray(term.number, dtype)
        if term.parameter not in constants:
            raise WorkloadError("several vectors are added, not all of them constants")
        moved = [self.shape[a] if a in term.axes else 1 for a in self.channels]
        return constants[term.parameter].reshape(moved)

    def _check_sign(self, scale: int | Array | None) -> None:
        """Negative sums become 0 before they are scaled: that is the same afterwards if no scale is
        negative."""
        if not self.stored.positive:
            return
        if not isinstance(scale, np.ndarray) or not (scale > 0).all():
            raise WorkloadError("negative sums become 0 before a scale that may be negative")


def recognise_fused(function: tirx.PrimFunc, name: str = "tensorir") -> Fused:
    """The product of a function with what follows it; a function of one block is one that nothing
    follows.

    Raises :class:`WorkloadError` for a function that is none, or stores what no kernel stores.
    """
    parameters = vars_of(function)
    if not all(isinstance(parameter.ty, tirx.BufferType) for parameter in parameters):
        raise WorkloadError(f"{name}: has a parameter that is no buffer")
    nests = _inlined(function, name)
    if len(nests) > 2:
        raise WorkloadError(
            f"{name}: has {len(nests)} blocks that compute, not one and what follows"
        )
    sums = _written(nests[0])
    read = [p for p in parameters[:-1] if _reads(nests[0], p)]
    # Equal products of a network are equal computations: solved once, tuned once.
    names = [f"{OPERAND}{number}" for number in range(len(read))]
    recognised = read_block(nests[0], [*read, sums], name, [*names, "sums"])
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    operands = {
        operand: numbers[parameter]
        for operand, parameter in zip(recognised.parameters, read, strict=False)
    }
    output = parameters[-1]
    shape = tuple(constant_size(size, f"{name}: a size of the output") for size in output.shape)
    channels = channel_dimensions(recognised)
    found = Stored(None)
    if len(nests) > 1:
        found = _following(nests[1], sums, recognised, channels, shape)
    elif not sums.same_as(output):
        raise WorkloadError(f"{name}: its sums are not its output")
    return Fused(
        recognised, operands, _numbered(found, numbers), channels, shape, str(output.dtype)
    )


def _following(
    nest: Any, sums: Any, recognised: Recognised, channels: Sequence[int], shape: Sequence[int]
) -> Stored:
    block = _block(nest)
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        raise WorkloadError("what follows the sums is no statement of one element")
    whole = [axis for axis, size in enumerate(shape) if size > 1]
    steps = steps_of(block.body, sums)
    return stored(steps, recognised.computation.output.dtype, channels, whole)


def _numbered(found: Stored, numbers: Mapping[Any, int]) -> Stored:
    def of(term: Term | None) -> Term | None:
        if term is None or term.is_number:
            return term
        if term.parameter not in numbers:
            raise WorkloadError(f"{term.parameter.name} is computed beside the sums")
        return Term(numbers[term.parameter], term.axes)

    bias = tuple(term for term in map(of, found.bias) if term is not None)
    return Stored(found.epilogue, bias, of(found.scale), of(found.residual), found.positive)


def channel_dimensions(recognised: Recognised) -> tuple[int, ...]:
    """The dimensions of a function's output that vectors of an epilogue move with; none where they
    would not be vectors in the output's order."""
    workload = recognised.computation
    if len(workload.inputs) < 2:
        return ()
    axes = list(channel_axes(workload))
    places = [index.single_iterator for index in workload.access(workload.output.name).index]
    found: list[int] = []
    order: list[str] = []
    place = 0
    for dimension, count in enumerate(recognised.output_split):
        parts = [name for name in places[place : place + count] if name in axes]
        place += count
        if parts and len(parts) != count:
            return ()
        if parts:
            found.append(dimension)
            order += parts
    return tuple(found) if order == axes else ()


def _inlined(function: tirx.PrimFunc, name: str) -> list[Any]:
    """The loop nests that are left when everything is inlined but the sums and what is stored."""
    schedule: Any = s_tir.Schedule(ir.IRModule({"main": function}))
    root = schedule.get_sblock("root")
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for block in schedule.get_child_blocks(root):
        found = schedule.get(block)
        if found.name_hint in outputs or reduces(found):
            continue
        try:
            schedule.compute_inline(block)
        except s_tir.schedule.ScheduleError:
            raise WorkloadError(f"{name}: block {found.name_hint} cannot be inlined") from None
    body = schedule.mod["main"].body
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

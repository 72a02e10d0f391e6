"""Specification of a program: scalar statements over named tensors.

An operator of a network becomes a few statements, each of which instructions may compute: sums of
products, their requantization, the addition of a residual. Operators with several such forms have
several specifications, between which the planner decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.errors import InvariantError
from cpembed.ir.computation import Computation, Operand
from cpembed.ir.dtypes import numpy_dtype
from cpembed.ir.reference import reference

Array = NDArray[Any]


@dataclass(frozen=True)
class Statement:
    """A computation whose operands are named as the tensors of the specification.

    ``accumulates`` is true for a reduction that goes on from what an earlier statement wrote to
    the same tensor, such as a bias.
    """

    computation: Computation
    accumulates: bool = False

    @property
    def reads(self) -> tuple[Operand, ...]:
        return self.computation.inputs

    @property
    def output(self) -> Operand:
        return self.computation.output


@dataclass(frozen=True)
class Specification:
    """Statements in their order, and what is there before and wanted after them.

    Attributes
    ----------
    inputs : tuple of str
        Tensors that differ from call to call.
    constants : mapping of str to ndarray
        Tensors with the same elements in every call.
    outputs : tuple of str
        Tensors that are the result.
    deviation : str
        Bound on how far the statements are from the operator that they stand for; empty if they
        are equal.
    """

    name: str
    statements: tuple[Statement, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    deviation: str = ""

    @property
    def operands(self) -> dict[str, Operand]:
        """Shape and element type of every tensor."""
        operands: dict[str, Operand] = {}
        for statement in self.statements:
            for operand in statement.computation.operands:
                operands.setdefault(operand.name, operand)
        return operands

    @property
    def roles(self) -> dict[str, str]:
        """Role in main memory of each input, constant and output; others are temporary."""
        roles = dict.fromkeys(self.inputs, "input")
        roles |= dict.fromkeys(self.constants, "constant")
        return roles | dict.fromkeys(self.outputs, "output")

    def canonical_names(self) -> dict[str, str]:
        """Return a name for each tensor by its role, so that equal operators have equal ones."""
        roles = self.roles
        return {n: f"{roles.get(n, 'temporary')}{k}" for k, n in enumerate(self.operands)}

    def renamed(self, names: Mapping[str, str]) -> Specification:
        """Return the specification with new names of all tensors."""
        statements = (
            replace(s, computation=s.computation.with_names(names)) for s in self.statements
        )
        return replace(
            self,
            statements=tuple(statements),
            inputs=tuple(names[name] for name in self.inputs),
            outputs=tuple(names[name] for name in self.outputs),
            constants={names[name]: array for name, array in self.constants.items()},
        )

    def evaluate(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute every tensor in numpy, in the shapes of the statements' operands."""
        values: dict[str, Array] = {**self.constants, **inputs}
        for statement in self.statements:
            computation = statement.computation
            arrays = {
                operand.tensor: np.asarray(values[operand.tensor]).reshape(operand.shape)
                for operand in computation.inputs
            }
            result = reference(computation, arrays)
            name = statement.output.tensor
            if statement.accumulates:
                result = _accumulated(statement, values[name], result)
            if name in values and name not in self.constants:
                # A statement that writes a part of a tensor leaves the rest as it is.
                before = np.asarray(values[name]).reshape(result.shape)
                result = np.where(_written(computation), result, before)
            values[name] = result
        return values


def _written(computation: Computation) -> NDArray[np.bool_]:
    """Return which elements of its output a computation of one statement writes."""
    store, shape = computation.statement.store, computation.output.shape
    written = np.zeros(shape, np.bool_)
    axes = store.iterators
    grids = np.indices([computation.extents[axis] for axis in axes], sparse=True)
    point = dict(zip(axes, grids, strict=True))
    places = (np.asarray(i.evaluate(point)) for i in store.index)
    index = np.broadcast_arrays(*places, np.zeros([g.size for g in grids], np.int64))
    inside = np.ones(index[-1].shape, np.bool_)
    for position, size in zip(index[:-1], shape, strict=True):
        inside &= (position >= 0) & (position < size)
    written[tuple(position[inside] for position in index[:-1])] = True
    return written


def _accumulated(statement: Statement, before: Array, result: Array) -> Array:
    """Combine the old contents of an output with a reduction that began anew."""
    operation = statement.computation.statement.reduction
    dtype = numpy_dtype(statement.output.dtype)
    combine = {"add": np.add, "max": np.maximum, "min": np.minimum}.get(operation or "")
    if combine is None:
        raise InvariantError(f"{statement.computation} does not go on from an earlier statement")
    return combine(before.reshape(result.shape), result).astype(dtype)

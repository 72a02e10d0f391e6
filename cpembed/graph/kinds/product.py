"""Products of tensors: the operators in which instructions are embedded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpembed.codegen.epilogue import RESIDUAL, Epilogue, channel_axes, channel_numbers
from cpembed.errors import WorkloadError
from cpembed.graph.kinds.base import Array, Kind, TensorType
from cpembed.ir.computation import Computation, Operand, changed_accesses
from cpembed.ir.dtypes import is_integer
from cpembed.ir.expression import Access
from cpembed.ir.reference import reference


@dataclass(frozen=True)
class Product(Kind):
    """Product ``sum (A - a) * (B - b)``, followed by an epilogue.

    The inputs are A, B, the vectors of the epilogue (bias, scale, those of a chain: one element per
    channel), and its residual if it has one. Without an epilogue the sums are the result. With a
    second result in the epilogue there are two outputs of one shape.

    Attributes
    ----------
    computation : Computation
        Product of two operands, which are indexed as the tensors come, so that a transposition is
        an order of indices. Its shapes are those of the tensors, except for axes that are split
        (groups of channels).
    shape : tuple of int
        Shape of the result, a reshape of the computation's output.
    zero_points : tuple of int
        a and b.
    padding : int
        Reads outside A yield ``a + padding``. This is the zero point, which adds nothing to the
        sums, or, if a is 0, a zero point that the bias accounts for.
    """

    computation: Computation
    shape: tuple[int, ...]
    zero_points: tuple[int, int] = (0, 0)
    epilogue: Epilogue | None = None
    padding: int = 0

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.computation.output.dtype if self.epilogue is None else self.epilogue.dtype

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the epilogue's vectors, in the order of the inputs after A and B."""
        return () if self.epilogue is None else self.epilogue.vectors

    def types(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        for operand, actual in zip(self.computation.inputs, inputs, strict=False):
            if actual.elements != operand.elements or actual.dtype != operand.dtype:
                raise WorkloadError(
                    f"operand {operand.name} is {actual}, the product takes {operand.dtype} "
                    f"{list(operand.shape)}"
                )
        if math.prod(self.shape) != self.computation.output.elements:
            raise WorkloadError(f"a product of {self.computation.output.shape} as {self.shape}")
        second = None if self.epilogue is None else self.epilogue.second
        dtypes = (self.dtype, *([] if second is None else [second.dtype]))
        return tuple(TensorType(self.shape, dtype) for dtype in dtypes)

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            sums = self.sums(inputs[0], inputs[1])
        return self.results(sums, inputs)

    def finished(self, sums: Array, inputs: Sequence[Array]) -> Array:
        """Return the first result of the epilogue on sums in the computation's shape."""
        return self.results(sums, inputs)[0]

    @np.errstate(all="ignore")
    def results(self, sums: Array, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the results of the epilogue on sums in the computation's shape."""
        if self.epilogue is None:
            return (sums.reshape(self.shape),)
        named = self.epilogue_inputs(inputs)
        residual = named.pop(RESIDUAL, None)
        residual = None if residual is None else residual.reshape(sums.shape)
        arguments = (sums, named, channel_numbers(self.computation), residual)
        stored = [self.epilogue.apply(*arguments)]
        if self.epilogue.second is not None:
            stored.append(self.epilogue.apply_second(*arguments))
        return tuple(array.reshape(self.shape) for array in stored)

    def epilogue_inputs(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Return what the epilogue reads besides the sums, by the names of kernels' inputs."""
        if self.epilogue is None:
            return {}
        named = dict(zip(self.epilogue.parameters, inputs[2:], strict=True))
        return {
            name: array if name == RESIDUAL else array.reshape(-1) for name, array in named.items()
        }

    def sums(self, first: Array, second: Array) -> Array:
        """Return the sums before the epilogue, in the computation's shape."""
        workload = self.computation
        arrays: dict[str, Array] = {}
        wide: dict[str, str] = {}
        for operand, array, zero in zip(
            workload.inputs, (first, second), self.zero_points, strict=True
        ):
            shaped = array.reshape(operand.shape)
            # The difference of two bytes needs nine bits.
            if zero:
                shaped = shaped.astype(np.int16) - np.int16(zero)
                wide[operand.name] = "int16"
            arrays[operand.name] = shaped
        # The reference pads with 0, so any other number is made part of the operand.
        if self.padding:
            name = workload.inputs[0].name
            workload, arrays[name] = _with_padding(workload, arrays[name], self.padding)
        if is_integer(workload.output.dtype) and wide:
            workload = workload.with_dtypes(wide)
        return reference(workload, arrays)

    @property
    def channels(self) -> int:
        """Number of elements of an epilogue vector."""
        extents = self.computation.extents
        return math.prod(extents[axis] for axis in channel_axes(self.computation))

    def with_epilogue(self, epilogue: Epilogue | None) -> Product:
        """Return the product with another epilogue."""
        return replace(self, epilogue=epilogue)

    @property
    def label(self) -> str:
        return self.computation.name


def _with_padding(workload: Computation, first: Array, value: int) -> tuple[Computation, Array]:
    """Return the computation without outside reads, and its first operand padded with ``value``."""
    operand = workload.inputs[0]
    # Margins as wide as the farthest reads on each side.
    access = workload.access(operand.name)
    bounds = [index.bounds(workload.extents) for index in access.index]
    margins = [
        (max(0, -low), max(0, high - size + 1))
        for (low, high), size in zip(bounds, operand.shape, strict=True)
    ]
    padded = np.pad(first, margins, constant_values=value)
    moved = tuple(i + before for i, (before, _) in zip(access.index, margins, strict=True))
    operand = replace(operand, shape=padded.shape)
    return with_operand(workload, operand, replace(access, index=moved)), padded


def with_operand(workload: Computation, operand: Operand, access: Access) -> Computation:
    """Return a computation with another shape of, and access to, one operand.

    Parameters
    ----------
    workload : Computation
    operand : Operand
        Replacement of the operand of the same name.
    access : Access
        Its only access.
    """

    def changed(old: Operand) -> Operand:
        return operand if old.name == operand.name else old

    def rewritten(old: Access) -> Access:
        return access if old.operand == operand.name else old

    # Shapes and accesses have to fit, so both are replaced at once.
    return replace(
        workload,
        inputs=tuple(map(changed, workload.inputs)),
        outputs=tuple(map(changed, workload.outputs)),
        statements=changed_accesses(workload.statements, rewritten),
    )

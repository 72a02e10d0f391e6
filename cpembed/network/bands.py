"""Bands of a convolution: some rows of the result of one sample, computed at addresses in memory.

A band of a product is a product of its own, with as many rows. Each band is computed by the same
kernel, on the addresses at which its sample and its first row begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cpembed.codegen.epilogue import Epilogue
from cpembed.errors import LoweringError
from cpembed.graph.kinds import Product
from cpembed.ir.computation import AxisKind, Computation, Operand
from cpembed.ir.index import IndexExpr, flat_index, row_major_strides
from cpembed.network.convolution_methods import ProductLayouts
from cpembed.network.layout import dimensions_of
from cpembed.network.operators.pairs import IMAGE, OUTPUT, RESIDUAL, Steps
from cpembed.network.physical_product import PhysicalProduct, physical_product


@dataclass(frozen=True)
class Band:
    """Rows of a convolution's result, on tensors in layouts.

    Attributes
    ----------
    kind : Product
    physical : PhysicalProduct
        The whole product on the tensors.
    computation : Computation
        The product of one sample and of the band's rows.
    sample, row : str
        Axes of samples and rows.
    reads_band : bool
        The first factor is a band of as many rows of one sample, in a buffer of its own.
    """

    kind: Product
    physical: PhysicalProduct
    computation: Computation
    sample: str
    row: str
    reads_band: bool

    @classmethod
    def cut_from(
        cls, kind: Product, layouts: ProductLayouts, rows: int, *, reads_band: bool = False
    ) -> Band:
        """Return a band of a convolution.

        Parameters
        ----------
        kind : Product
            Convolution.
        layouts : ProductLayouts
            Layouts of the whole tensors.
        rows : int
            Number of rows, positions along the first spatial axis.
        reads_band : bool, default False

        Raises
        ------
        LoweringError
            If rows at the border need padding that is not in memory, or rows are no axis.
        """
        sample, row = row_axes(kind)
        physical = physical_product(kind, layouts.image, layouts.output, layouts.residual)
        product = physical.computation
        if product.inputs[0].zero_outside:
            raise LoweringError("padding that is not in memory")
        extents = {sample: 1, row: rows}
        cut = (sample, row) if reads_band else (sample,)
        image = _cut(product, product.inputs[0], {axis: extents[axis] for axis in cut})
        computation = replace(
            product,
            axes=tuple(replace(a, extent=extents.get(a.name, a.extent)) for a in product.axes),
            inputs=(image, *product.inputs[1:]),
            outputs=(_cut(product, product.output, extents),),
        )
        return cls(kind, physical, computation, sample, row, reads_band)

    def epilogue(self) -> Epilogue | None:
        """Return the epilogue, with the positions of its output and addend in whole tensors."""
        # The first result of a pair is a buffer of its own.
        if not self.reads_band:
            return self.kind.epilogue
        return self.physical.epilogue(self.kind, places=True)

    @property
    def steps(self) -> Mapping[str, Steps]:
        """Distances of samples and rows in each tensor that bands lie in."""
        product = self.physical.computation
        image, output = (product.access(o.name).index for o in (product.inputs[0], product.output))
        steps = {
            IMAGE: self._steps(image, row_major_strides(product.inputs[0].shape)),
            OUTPUT: self._steps(output, self.physical.output.strides),
        }
        if self.physical.residual is not None:
            steps[RESIDUAL] = self._steps(output, self.physical.residual.strides)
        return steps

    def _steps(self, index: Sequence[IndexExpr], strides: Sequence[int]) -> Steps:
        place = flat_index(index, strides)
        return Steps(place.coefficient(self.sample), place.coefficient(self.row))


def row_axes(kind: Product) -> tuple[str, str]:
    """Return the axes of a convolution's samples and rows.

    Raises :class:`~cpembed.errors.LoweringError` if one of them is no axis of the computation.
    """
    output = kind.computation.output
    groups = dimensions_of(kind.shape, output.shape)
    if len(groups) < 3:
        raise LoweringError(f"{kind.computation}: a result of {list(kind.shape)} has no rows")
    index = kind.computation.access(output.name).index
    axes = [
        axis_of(kind.computation, index[group[0]]) if len(group) == 1 else None
        for group in (groups[0], groups[2])
    ]
    sample, row = axes
    if sample is None or row is None:
        raise LoweringError(f"{kind.computation}: samples or rows are no axis")
    return sample, row


def axis_of(workload: Computation, index: IndexExpr) -> str | None:
    """Return the axis that an index is equal to; None if it is not.

    Taps of a window of one element count for nothing.
    """
    taps = {a.name for a in workload.axes if a.extent == 1 and a.kind is AxisKind.REDUCTION}
    return index.substitute({tap: IndexExpr() for tap in taps}).single_iterator


def _cut(workload: Computation, operand: Operand, extents: Mapping[str, int]) -> Operand:
    """Return an operand with the dimensions that some axes index alone as large as the axes."""
    index = workload.access(operand.name).index
    shape = (
        extents.get(axis_of(workload, expression) or "", size)
        for expression, size in zip(index, operand.shape, strict=True)
    )
    return replace(operand, shape=tuple(shape))

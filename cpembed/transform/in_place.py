"""An operand where it is: the layout it comes in, with zeros around where it is read outside."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.errors import TransformError
from cpembed.hw.instruction import StrideRule
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.index import IndexExpr
from cpembed.transform.layout_builder import LayoutBuilder
from cpembed.transform.program import PackedOperand
from cpembed.transform.rewrites import Flatten, Pad


@dataclass
class InPlaceLayout(LayoutBuilder):
    """The original layout, fused axes joined, which the memory side takes its tiles from."""

    def derive(self) -> PackedOperand:
        self._check_moves()
        self._flatten()
        kept = all(type(done) in (Flatten, Pad) for done in self.applied)
        if not (kept or self.layout.is_identity):
            raise TransformError(f"{self.layout.name} does not hold the fused axes as they are")
        padded = {
            axis: self.overlaps[axis].extent if axis in self.overlaps else self._reach(index)
            for axis, index in self.axis_map.items()
        }
        for k, dimension in enumerate(self.layout.dimensions):
            low, high = self._indices[dimension.name].bounds(padded)
            before, after = max(0, -low), max(0, high + 1 - dimension.extent)
            if before or after:
                name = self.layout.name
                self._apply(Pad(name, k, before, after, dimension.extent, dimension.name))
        for axis in self.instruction_axes:
            if self.extents[axis] > 1 and not self._walks(axis):
                raise TransformError(
                    f"{self.layout.name} lies in another order than the instruction takes {axis}"
                )
        return self.layout

    def _reach(self, index: IndexExpr) -> int:
        return index.bounds(self.extents)[1] + 1

    def _walks(self, axis: str) -> bool:
        """Whether the memory side takes an instruction axis from where it lies."""
        if any(
            axis in t.iterators and t.inner for index in self.layout.access for t in index.terms
        ):
            return False
        step = self.layout.axis_stride(axis)
        if step is None or step <= 0:
            return False
        if self.memory.stride_rule(axis) is StrideRule.ANY:
            return True
        size = size_bytes(self.layout.dtype)
        return step == 1 and self.memory.reads_contiguously(axis, size, self.extents)

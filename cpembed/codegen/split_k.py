"""Split-K: a reduction cut into parts that different tasks sum, where tasks are fewer than threads.

The partial sums go to a buffer of their own. When all are done the threads add them up, each in its
share of the output, and store what the epilogue makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.nest import KernelOperand, Nest, TileLoop
from cpembed.codegen.script import Script, storage_dtype
from cpembed.codegen.tiling import drop_unit_loops, substituted
from cpembed.errors import LoweringError
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.transform.program import Loop

_SUMS = "Sums"
"""Name of the buffer of partial sums in the text."""

_LANES = 16
"""Elements that are added up at a time."""


@dataclass(frozen=True)
class SplitK:
    """``parts`` partial sums of each element of ``output``, of type ``sums``."""

    output: KernelOperand
    epilogue: Epilogue | None
    sums: str
    parts: int

    def allocate(self, script: Script) -> None:
        count, dtype = self.parts * self.output.elements, storage_dtype(self.sums)
        script.line(f'{_SUMS} = T.sblock_alloc_buffer(({count},), "{dtype}")')

    def add_up(self, script: Script, chunks: int) -> None:
        """Store the results, in ``chunks`` parallel shares of whole vectors."""
        count = self.output.elements
        vectors, rest = divmod(count, _LANES)
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("total"):'):
            script.line(f"share = T.axis.spatial({chunks}, chunk)")
            script.line(f"T.reads({_SUMS}[0:{self.parts * count}])")
            script.line(f"T.writes({self.output.parameter}[0:{count}])")
            bounds = f"share * {vectors} // {chunks}, (share + 1) * {vectors} // {chunks}"
            lanes = f"for lane in T.vectorized({_LANES}):"
            if vectors:
                with script.nested(f"for vector in T.serial({bounds}):", lanes):
                    script.line(self._result(f"vector * {_LANES} + lane"))
            if rest:
                last = f"for element in T.serial({count - rest}, {count}):"
                with script.nested(f"if share == {chunks - 1}:", last):
                    script.line(self._result("element"))

    def _result(self, place: str) -> str:
        count = self.output.elements
        value = " + ".join(f"{_SUMS}[{place} + {part * count}]" for part in range(self.parts))
        if self.epilogue is not None:
            value = self.epilogue.expression(f"({value})", self.sums, "")
        return f"{self.output.parameter}[{place}] = {value}"


def loop_to_split(nest: Nest, parts: int) -> Loop | None:
    """The outermost reduction whose extent is a multiple of ``parts``."""
    return next((loop for loop in nest.reductions if loop.extent % parts == 0), None)


def split_k(nest: Nest, parts: int) -> Nest:
    """Make tasks of the ``parts`` of a reduction: the outermost task loop walks them, and each
    stores to its own part of the buffer of partial sums.

    Raises :class:`LoweringError` where no loop can be cut so, or the epilogue has vectors, whose
    element the place of a sum does not tell.
    """
    if nest.epilogue is not None and not nest.epilogue.is_of_sum_alone:
        raise LoweringError("with a bias, a scale or a place of its own, a reduction is not split")
    found = loop_to_split(nest, parts)
    if found is None:
        raise LoweringError(f"no loop of the reductions has a multiple of {parts} steps")
    whole, steps = f"{found.name}_part", found.extent // parts
    split = {found.name: IndexExpr.of([IndexTerm(whole, steps), IndexTerm(found.name)])}
    cut = (replace(loop, extent=steps) if loop is found else loop for loop in nest.reductions)
    part = TileLoop(whole, parts, origin="part of the sums")
    output = nest.operands[2]
    nest = substituted(nest, split, tasks=(part, *nest.tasks), reductions=tuple(cut))
    first, second, stored = nest.operands
    own = stored.access + IndexExpr.of([IndexTerm(whole, output.elements)])
    partial = KernelOperand(_SUMS, nest.sums, output.elements * parts, own)
    split_nest = replace(
        nest,
        operands=(first, second, partial),
        epilogue=None,
        channels=None,
        sums_dtype=nest.sums,
        split=SplitK(output, nest.epilogue, nest.sums, parts),
    )
    return drop_unit_loops(split_nest)

"""Sums that several threads make together, where a kernel has fewer tasks than threads.

A reduction is cut into parts (:func:`~cpembed.kernel.blocking.cut_sums`), which are summed apart
into a buffer. When all are done the threads add them up, each in its share of the output, and store
what the epilogue makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.kernel.epilogue import Epilogue
from cpembed.kernel.nest import KernelOperand, Nest
from cpembed.kernel.script import Script, storage_dtype

SUMS = "Sums"
"""Name of the buffer in the text."""

_LANES = 16
"""Elements that are added up at a time."""


@dataclass(frozen=True)
class SharedSums:
    """``parts`` sums of each element of ``output``, of type ``sums``."""

    output: KernelOperand
    epilogue: Epilogue | None
    sums: str
    parts: int

    @staticmethod
    def of(nest: Nest, parts: int) -> SharedSums:
        """Of a nest before it is cut."""
        return SharedSums(nest.operands[2], nest.epilogue, nest.sums, parts)

    def allocate(self, script: Script) -> None:
        count, dtype = self.parts * self.output.elements, storage_dtype(self.sums)
        script.line(f'{SUMS} = T.sblock_alloc_buffer(({count},), "{dtype}")')

    def add_up(self, script: Script, chunks: int) -> None:
        """Store the results, in ``chunks`` parallel shares of whole vectors."""
        count = self.output.elements
        vectors, rest = divmod(count, _LANES)
        with script.nested(f"for chunk in T.parallel({chunks}):", 'with T.sblock("total"):'):
            script.line(f"share = T.axis.spatial({chunks}, chunk)")
            script.line(f"T.reads({SUMS}[0:{self.parts * count}])")
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
        value = " + ".join(f"{SUMS}[{place} + {part * count}]" for part in range(self.parts))
        if self.epilogue is not None:
            value = self.epilogue.expression(f"({value})", self.sums, "")
        return f"{self.output.parameter}[{place}] = {value}"

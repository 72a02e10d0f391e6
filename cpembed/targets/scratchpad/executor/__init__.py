"""Execution of kernels of scratchpad machines on this machine's processor: results, counters, and
checks of what the machine leaves undefined.

Processing elements are fibers with memories of their own; transfers arrive early or late, and
elements run in an order that the seed selects. Results are
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and nothing is timed.
``native/scratchpad.h`` is the interface that texts are written to; the rest of ``native/`` is the
runtime, in C++.
"""

from cpembed.errors import ExecutionFault
from cpembed.targets.scratchpad.executor.program import (
    COMPILER,
    HEADER,
    Counters,
    Program,
    Shape,
    TransferCounts,
    compile_text,
)

__all__ = [
    "COMPILER",
    "HEADER",
    "Counters",
    "ExecutionFault",
    "Program",
    "Shape",
    "TransferCounts",
    "compile_text",
]

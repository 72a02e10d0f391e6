"""Execution of CUDA text on this machine's processor, with counters and checks of what CUDA leaves
undefined.

The threads of a block are fibers; the lanes of a warp meet in collective functions, which are
executed once for all of them. Results are :attr:`~cpembed.provenance.Provenance.EMULATED`: numbers
and counts are right, and nothing is timed. ``native/`` holds the runtime, in C++.
"""

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.executor.program import (
    COMPILER,
    Counters,
    Launch,
    Order,
    Program,
    compile_text,
)

__all__ = ["COMPILER", "Counters", "ExecutionFault", "Launch", "Order", "Program", "compile_text"]

"""Runs CUDA text on this machine's processor: results, counters, and what a GPU does not define.

Threads of a block are fibers; the lanes of a warp meet in collective functions, which are
executed once for all of them. What this gives is
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and there is no time.
``native/`` holds the runtime, in C++.
"""

from cpembed.errors import ExecutionFault
from cpembed.targets.cuda.executor.counters import Counters
from cpembed.targets.cuda.executor.program import Launch, Order, Program, compile_text

__all__ = ["Counters", "ExecutionFault", "Launch", "Order", "Program", "compile_text"]

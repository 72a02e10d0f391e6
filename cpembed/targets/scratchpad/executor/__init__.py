"""Runs kernels of scratchpad machines on this machine's processor: results, counters, misuse.

Processing elements are fibers with memories of their own; transfers arrive early or late, and
elements go on in an order that the seed gives. What this gives is
:attr:`~cpembed.provenance.Provenance.EMULATED`: numbers and counts are right, and there is no time.
``native/scratchpad.h`` is the interface that texts are written to; the rest of ``native/`` is the
runtime, in C++.
"""

from cpembed.errors import ExecutionFault
from cpembed.targets.scratchpad.executor.compiler import HEADER
from cpembed.targets.scratchpad.executor.counters import Counters, Moved
from cpembed.targets.scratchpad.executor.program import Program, Shape, compile_text

__all__ = ["HEADER", "Counters", "ExecutionFault", "Moved", "Program", "Shape", "compile_text"]

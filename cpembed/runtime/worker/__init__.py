"""Functions called in a child process, which may die in the parent's place.

Compiling and running generated code can end a process: an abort inside the compiler, SIGILL,
SIGSEGV, memory that runs out, a loop without an end. So both happen in a child process that is
warm after its first call and is replaced when it dies; the parent gets a
:class:`~cpembed.errors.CrashError`, one line that says what was being done.

``call`` executes a function there, ``call_each`` one of many arguments in several such processes,
``prepare`` starts the child ahead of its first call. What a child is doing, and how long it may
take, is named by :func:`cpembed.steps.step`.
"""

from __future__ import annotations

from cpembed.runtime.worker.crew import call_each
from cpembed.runtime.worker.parent import IN_PROCESS_VARIABLE, call, prepare, retire

__all__ = [
    "IN_PROCESS_VARIABLE",
    "call",
    "call_each",
    "prepare",
    "retire",
]

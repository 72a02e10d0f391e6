"""Functions called in a child process, which a crash ends instead of this one.

Compiling and running generated code can end a process: an abort inside the compiler, SIGILL,
SIGSEGV, exhausted memory, an endless loop. Both therefore happen in a child process that is warm
after its first call and is replaced when it dies; the parent gets a
:class:`~cpembed.errors.CrashError`, one line that names the step.

``call`` executes a function there, ``call_each`` one of many arguments in several such processes,
``prepare`` starts the child ahead of its first call. :func:`cpembed.steps.step` names the steps and
limits their time.
"""

from __future__ import annotations

from cpembed.runtime.worker.parent import (
    IN_PROCESS_VARIABLE,
    call,
    call_each,
    prepare,
    retire,
)

__all__ = ["IN_PROCESS_VARIABLE", "call", "call_each", "prepare", "retire"]

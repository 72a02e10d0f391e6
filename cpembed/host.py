"""Cores that this process may use, and the compilers of the machine that it runs on."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from cpembed.errors import BackendUnavailable


def core_count() -> int:
    """Return the number of cores that this process may use."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def compiler_command(variable: str, names: Sequence[str], purpose: str) -> list[str]:
    """Return the command of a compiler, split into words.

    Parameters
    ----------
    variable
        Environment variable that names the compiler, with options.
    names
        Names of compilers to look for if the variable is not set.
    purpose
        Reason why it is needed, for the message.

    Raises
    ------
    BackendUnavailable
        If there is none.
    """
    configured = shlex.split(os.environ.get(variable, ""))
    # A compiler that is named is not replaced by another one.
    for words in [configured] if configured else [[name] for name in names]:
        if shutil.which(words[0]):
            return words
    named = f"{variable}={configured[0]}" if configured else " or ".join(names)
    raise BackendUnavailable(
        f"{purpose}, and there is no {named} on the path: install one of {', '.join(names)}, or "
        f"set {variable}"
    )

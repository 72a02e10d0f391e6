"""Which compiler of this machine is called: what a variable names, or the first one there is."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from cpembed.errors import BackendUnavailable


def compiler_command(variable: str, names: Sequence[str], purpose: str) -> list[str]:
    """The words of the command: those in the environment's ``variable``, with options, or the first
    of ``names`` on the path. ``purpose`` says in a message what it is needed for.

    Raises :class:`BackendUnavailable` where there is none.
    """
    told = shlex.split(os.environ.get(variable, ""))
    for words in [told] if told else [[name] for name in names]:
        if shutil.which(words[0]):
            return words
    named = f"{variable}={told[0]}" if told else " or ".join(names)
    raise BackendUnavailable(
        f"{purpose}, and there is no {named} on the path: install one of {', '.join(names)}, or "
        f"set {variable}"
    )

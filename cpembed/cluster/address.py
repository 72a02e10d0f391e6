"""Where a scheduler is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cpembed.errors import CpembedError

_ADDRESS = re.compile(r"(?:[a-z]+://)?(?:\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):\d+")


def scheduler_address(given: str) -> str:
    """An address as Dask writes it, of ``HOST:PORT``, an address, or the file that a scheduler
    wrote (``dask scheduler --scheduler-file``).

    >>> scheduler_address("node7:8786")
    'tcp://node7:8786'

    Raises :class:`CpembedError`.
    """
    if Path(given).is_file():
        return scheduler_address(_told(Path(given)))
    if not _ADDRESS.fullmatch(given):
        raise CpembedError(
            f"cluster {given!r} is neither HOST:PORT, an address such as tcp://HOST:PORT, nor a "
            "file that a scheduler has written"
        )
    return given if "://" in given else f"tcp://{given}"


def _told(path: Path) -> str:
    """What a scheduler's file says."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["address"]
    except (OSError, ValueError, LookupError, TypeError):
        found = None
    if not isinstance(found, str) or Path(found).is_file():
        raise CpembedError(f"{path}: not the file of a scheduler, which holds its address")
    return found

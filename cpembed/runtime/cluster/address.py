"""Where a scheduler is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from cpembed.errors import CpembedError
from cpembed.files import read_regular

_ADDRESS = re.compile(r"(?:[a-z]+://)?(?:\[[0-9a-fA-F:]+\]|[^\s:/\[\]\0]+):(?P<port>\d{1,5})")
_LARGEST_FILE = 2**20


def scheduler_address(given: str, scheme: str = "tcp") -> str:
    """An address as Dask writes it, of ``HOST:PORT``, an address, or the file that a scheduler
    wrote (``dask scheduler --scheduler-file``); ``scheme`` is that of what has none.

    >>> scheduler_address("node7:8786")
    'tcp://node7:8786'

    Raises :class:`CpembedError`.
    """
    if _is_file(given):
        return scheduler_address(_told(Path(given)), scheme)
    address = _ADDRESS.fullmatch(given)
    if address is None or int(address["port"]) > 65535:
        raise CpembedError(
            f"cluster {given!r} is neither HOST:PORT, an address such as tcp://HOST:PORT, nor a "
            "file that a scheduler has written"
        )
    return given if "://" in given else f"{scheme}://{given}"


class _Told(msgspec.Struct):
    """What is needed of a scheduler's file."""

    address: str


def _told(path: Path) -> str:
    """What a scheduler's file says."""
    try:
        found = msgspec.json.decode(read_regular(path, _LARGEST_FILE), type=_Told).address
    except (OSError, ValueError, RecursionError):
        found = None
    if found is None or _ADDRESS.fullmatch(found) is None or _is_file(found):
        raise CpembedError(f"{path}: not the file of a scheduler, which holds its address")
    return found


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except (OSError, ValueError):
        # Longer than a name can be, or with a null character.
        return False

"""Dask distributed, an extra, as this package uses it."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from cpembed.errors import BackendUnavailable

SETTINGS = {
    # Work that holds Python's lock keeps a worker from saying that it lives; a process that has
    # ended is noticed by its connection all the same.
    "distributed.scheduler.worker-ttl": None,
    "distributed.comm.timeouts.connect": "60s",
    # Tasks start processes of their own, whose daemons could not.
    "distributed.worker.daemon": False,
    # A profile of every task is nothing that is looked at here.
    "distributed.worker.profile.enabled": False,
    # A worker's process only waits for its child's, whose memory it does not see.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
"""Of its configuration, for what this package starts."""


def require_distributed() -> None:
    """Raise :class:`BackendUnavailable` where it is not installed; keep its own messages quiet."""
    if find_spec("distributed") is None:
        raise BackendUnavailable(
            "a cluster needs Dask distributed, which is not installed: pip install "
            "'cpembed[cluster]'"
        )
    import distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from dask import config

    # What is lost or comes back is told by this package, in its own lines.
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config.set(SETTINGS)

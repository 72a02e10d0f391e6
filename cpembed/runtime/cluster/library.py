"""Dask distributed, an extra, as this package uses it."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from cpembed.errors import BackendUnavailable

SETTINGS = {
    # Tasks start processes of their own, whose daemons could not.
    "distributed.worker.daemon": False,
    # It would only show that a worker waits for its child.
    "distributed.worker.profile.enabled": False,
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

"""Independent tasks in this process, in several, or on the machines of a Dask cluster."""

from __future__ import annotations

from cpembed.runtime.cluster.base import Outcome, Task, Workers
from cpembed.runtime.cluster.connection import Tls
from cpembed.runtime.cluster.opening import open_workers

__all__ = ["Outcome", "Task", "Tls", "Workers", "open_workers"]

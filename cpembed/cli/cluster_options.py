"""Options of commands whose work can be done by several processes or machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import click

from cpembed.cli.options import require_one, together

if TYPE_CHECKING:
    from cpembed.cluster import Workers


class Executors(TypedDict):
    """The parameters of :data:`workers_options`."""

    workers: int | None
    cluster: str | None


workers_options: Callable[[Any], Any] = together(
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Work in N processes of this machine; nothing is measured beside others.",
    ),
    click.option(
        "--cluster",
        metavar="ADDRESS|FILE",
        help="Work on a Dask cluster: its scheduler's address, or the file in which it is; see "
        "`cpembed worker`.",
    ),
)
"""Who does the work: the parameters of :class:`Executors`."""


def workers_of(executors: Executors, *, measures: bool = False, compiles: bool = True) -> Workers:
    """What was asked for, to be used as a context manager; ``measures`` and ``compiles`` as for
    :func:`~cpembed.cluster.open_workers`."""
    require_one(**{name: given is not None for name, given in executors.items()})
    from cpembed.cluster import open_workers

    return open_workers(**executors, measures=measures, compiles=compiles)

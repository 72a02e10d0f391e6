"""PyTorch's models as graphs: programs of ``torch.export``, float and quantized (PT2E).

``torch.compile(model, backend="cpembed")`` is :mod:`cpembed.frontends.torch.dynamo`.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpembed.errors import BackendUnavailable

if TYPE_CHECKING:
    from cpembed.graph.graph import Graph

__all__ = ["from_exported", "load"]


def load(path: Path | str) -> Graph:
    """The network of a file that ``torch.export.save`` wrote (``.pt2``).

    Raises :class:`BackendUnavailable` without PyTorch, and
    :class:`~cpembed.errors.ModelError` for a file or an operator that is not understood.
    """
    _require_torch(str(path))
    from cpembed.frontends.torch import exported

    return exported.load(path)


def from_exported(program: Any, *, name: str = "model") -> Graph:
    """The network of a ``torch.export.ExportedProgram``: parameters and buffers are constants,
    inputs and outputs have the program's names.

    Raises :class:`~cpembed.errors.ModelError`, which says where, for an operator that is not known
    or is used in a way that is not, for sizes that are left open, and for a program that changes
    its buffers.
    """
    _require_torch(name)
    from cpembed.frontends.torch import exported

    graph: Graph = exported.from_exported(program, name=name)  # pyright: ignore[reportUnknownMemberType]
    return graph


def _require_torch(what: str) -> None:
    if find_spec("torch") is None:
        raise BackendUnavailable(f"{what}: reading it needs PyTorch: pip install 'cpembed[torch]'")

"""PyTorch's models as graphs: programs of ``torch.export``, float and quantized (PT2E).

``torch.compile(model, backend="cpembed")`` is :mod:`cpembed.frontends.torch.dynamo`, and
:func:`summary` tells what became of the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpembed.errors import BackendUnavailable
from cpembed.frontends import Fallback
from cpembed.frontends.torch.compile_summary import summary

if TYPE_CHECKING:
    from cpembed.frontends.open_sizes import OpenModel
    from cpembed.graph.graph import Graph

__all__ = ["from_exported", "open_model", "summary"]


def open_model(path: Path, outputs: Sequence[str] = (), fallback: Fallback = None) -> OpenModel:
    """Read a file that ``torch.export.save`` wrote, whose graph is then made at any sizes.

    Parameters
    ----------
    path, outputs, fallback
        As for :func:`cpembed.frontends.load_model`.

    Raises
    ------
    BackendUnavailable
        Without PyTorch.
    ModelError
        For a file that cannot be read.
    """
    _require_torch(str(path))
    from cpembed.frontends.torch import lowering

    return lowering.open_model(path, outputs=outputs, fallback=fallback)


def from_exported(program: Any, *, name: str = "model") -> Graph:
    """Return the network of a ``torch.export.ExportedProgram``.

    Parameters and buffers are constants, inputs and outputs have the program's names.

    Raises :class:`~cpembed.errors.ModelError`, with the place, for an operator that is not known
    or is used in a way that is not, for open sizes, and for a program that changes its buffers.
    """
    _require_torch(name)
    from cpembed.frontends.torch import lowering

    return lowering.from_exported(program, name=name)  # pyright: ignore[reportUnknownMemberType]


def _require_torch(source: str) -> None:
    if find_spec("torch") is None:
        raise BackendUnavailable(
            f"{source}: reading it needs PyTorch: pip install 'cpembed[torch]'"
        )

"""PyTorch itself, eager, as the judge of what is read from it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cpembed.frontends.torch import from_exported
from cpembed.graph.graph import Graph, evaluate


class Function(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def run(graph: Graph, *inputs: torch.Tensor) -> list[np.ndarray]:
    """The outputs of a graph, in their order."""
    given = {name: tensor.numpy() for name, tensor in zip(graph.inputs, inputs, strict=True)}
    values = evaluate(graph, given, keep=lambda name: False)
    return [values[name] for name in graph.outputs]


def eager(model: torch.nn.Module, *inputs: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        found = model(*inputs)
    tensors = found if isinstance(found, tuple | list) else [found]
    return [tensor.numpy() for tensor in tensors]


def compared(
    model: torch.nn.Module, *inputs: torch.Tensor, tolerance: float = 1e-5, core: bool = False
) -> Graph:
    """The graph of a model, whose outputs are PyTorch's: of the same types, and floats within a
    tolerance of their size. ``core``: of the model as PyTorch writes it in core ATen."""
    model = model.eval()
    program = torch.export.export(model, inputs)
    program = program.run_decompositions() if core else program
    graph = from_exported(program, name="tested")
    wanted = eager(model, *inputs)
    found = run(graph, *inputs)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "f":
            scale = max(
                1.0, float(np.abs(np.nan_to_num(theirs, posinf=0, neginf=0)).max(initial=0))
            )
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(mine, theirs)
    return graph

"""A small network of PyTorch, quantized by PT2E, as a graph of integer products.

    python examples/torch_export.py

It needs torch and torchao. The graph's own definition in numpy is compared with PyTorch's result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

from cpembed.frontends.torch import from_exported
from cpembed.graph.graph import Graph, evaluate
from cpembed.graph.passes import prepare

IMAGE = (1, 3, 32, 32)


class Network(nn.Module):
    """Two convolutions, of which the second is added to its input, a pool and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.classes = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x) + x)
        return self.classes(x.mean((2, 3)))


def quantized(model: nn.Module, example: torch.Tensor) -> nn.Module:
    """The model in eight bits, calibrated with one input."""
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model.eval(), (example,)).module(), quantizer)
    with torch.no_grad():
        prepared(example)
    return convert_pt2e(prepared)


def table(graph: Graph) -> str:
    """Return a line for each operator of a network."""
    rows = [
        f"  {operator.name:32} {operator.kind.label:14} {graph.types[operator.output]}"
        for operator in graph.operators
    ]
    return "\n".join(rows)


def main() -> None:
    """Export a quantized network, prepare it, and compare its numbers with PyTorch's."""
    torch.manual_seed(0)
    image = torch.randn(IMAGE)
    model = quantized(Network(), image)
    graph = from_exported(torch.export.export(model, (image,)), name="small")
    print(f"As PyTorch writes it, {len(graph.operators)} operators:\n{table(graph)}\n")
    prepared = prepare(graph)
    print(f"As it is compiled, {len(prepared.operators)} operators:\n{table(prepared)}\n")
    with torch.no_grad():
        expected = model(image).numpy()
    (name,) = prepared.outputs
    result = evaluate(prepared, {"x": image.numpy()})[name]
    print(f"Largest difference from PyTorch: {np.abs(result - expected).max():.2g}")


if __name__ == "__main__":
    main()

"""torch.compile with compiled networks for what is quantized.

    python examples/torch_compile.py [TARGET]

It needs torch, torchao, a C compiler, and a processor that executes the target.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings

import torch
from torch_export import IMAGE, Network, quantized

from cpembed.frontends.torch.dynamo import backend

CALLS = 100


def microseconds(model: torch.nn.Module, image: torch.Tensor) -> float:
    """Return the mean time of a call in microseconds."""
    start = time.perf_counter()
    for _ in range(CALLS):
        model(image)
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    """Compile a quantized network with torch.compile, and time it."""
    warnings.simplefilter("ignore")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("cpembed.frontends.torch").setLevel(logging.INFO)
    torch.manual_seed(0)
    image = torch.randn(IMAGE)
    model = quantized(Network(), image)
    options = {"target": sys.argv[1]} if len(sys.argv) > 1 else {}
    # An installed package is found by its name, backend="cpembed".
    fast = torch.compile(model, backend=backend, options=options, dynamic=False)
    with torch.no_grad():
        difference = (fast(image) - model(image)).abs().max()
        print(f"Largest difference: {difference:.2g}")
        print(f"{microseconds(fast, image):.0f} us a call, {microseconds(model, image):.0f} eager")


if __name__ == "__main__":
    main()

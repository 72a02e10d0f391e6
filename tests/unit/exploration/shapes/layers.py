"""Random layers and shapes, and what a search for one shape finds."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.embedding.constraint_set import Weights
from cpembed.exploration.shapes.shape import Shape, instruction_of, template
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation

SIZES = (1, 1, 1, 2, 2, 3, 4, 5, 6, 8)


def small_layer(rng: random.Random) -> Computation:
    """A product or a convolution of a few thousand points at most."""
    kind = rng.random()
    if kind < 0.25:
        m, n, k = (rng.choice((1, 2, 3, 4, 6, 7, 8, 12)) for _ in range(3))
        words = f"gemm m={m} n={n} k={k} trans_a={rng.randint(0, 1)}"
    elif kind < 0.4:
        b, m, n, k = (rng.randint(1, 5) for _ in range(4))
        words = f"batched_gemm b={b} m={m} n={n} k={k}"
    else:
        name = "depthwise" if kind < 0.5 else "conv2d"
        r, s = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3))
        h, w = r + rng.randint(0, 6), s + rng.randint(0, 6)
        c, k = rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 3, 4, 8))
        words = f"{name} n={rng.choice((1, 1, 2))} c={c} h={h} w={w} r={r} s={s}"
        words += f" stride={rng.choice((1, 1, 2))} pad={rng.choice((0, 1))}"
        words += f" layout={rng.choice(('NCHW', 'NHWC'))}"
        if name == "conv2d":
            words += f" k={k}"
    return workload(words, template())


def random_shape(rng: random.Random, macs: int) -> Shape:
    while True:
        shape = Shape(*(rng.choice(SIZES) for _ in range(3)))
        if shape.macs <= macs:
            return shape


def target_of(shape: Shape) -> HardwareSpec:
    """Target of a shape, without machines."""
    instruction = instruction_of(shape, template())
    return replace(template(), name=f"gemm_{shape}", instruction=instruction, path="", machines={})


def solved(layer: Computation, shape: Shape, constraints: str) -> float:
    """Executions of the candidate that ``solve --weights 1,0`` ranks first."""
    found = solve(layer, target_of(shape), constraints=constraints, top=1, weights=Weights(1, 0))
    return found.embeddings[0].overheads.calls if found.embeddings else math.inf

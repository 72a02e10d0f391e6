"""The layers that are packed: convolutions of three publications, and matrix products."""

from __future__ import annotations

import re
from dataclasses import replace

from cpembed.codegen.epilogue_request import EpilogueRequest
from cpembed.driver.bench_pack import PackItem
from cpembed.driver.named import hardware_spec, workload
from cpembed.errors import WorkloadError
from cpembed.workloads.suites import suite

DEEPBENCH_STEP = 6
"""Step among DeepBench's 108 convolutions, unless the suite is asked for by name.

Every application that has more than one is among them, and none was picked by its time.
"""

GEMM_STEP = 11
"""Step among DeepBench's 88 matrix products, likewise."""

PRODUCTS = (
    (1024, 1024, 1024),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (512, 3072, 768),
    (512, 768, 3072),
    (128, 4096, 4096),
    (16, 4096, 4096),
)
"""Rows, columns and depth: squares, and those of a Transformer's layers at several batches."""


def item(suite_name: str, name: str, words: str, target: str, stored: str) -> PackItem:
    """Return a layer on a target.

    Parameters
    ----------
    suite_name, name : str
        Suite of the layer, and its name.
    words : str
        Words that name its workload.
    target : str
        Name of the target.
    stored : str
        Element type of the result.
    """
    spec = hardware_spec(target)
    layer_workload = workload(words, target=spec)
    # Sums of this type are stored as they are.
    output = None if stored == layer_workload.output.dtype else stored
    return PackItem(
        suite=suite_name,
        name=name,
        words=words,
        workload=layer_workload,
        spec=spec,
        storing=EpilogueRequest(output),
    )


def _convolutions(name: str, batches: tuple[int | None, ...], step: int = 1) -> list[PackItem]:
    packed_layers: list[PackItem] = []
    for batch in batches:
        for layer in suite("amos" if name == "amos12" else name)[::step]:
            if layer.operator.name != "conv2d" or (name == "amos12" and layer.application != "C2D"):
                continue
            words, title = f"{layer.label} layout=NHWC", f"{name}:{layer.index}"
            if batch is not None:
                words = re.sub(r"\bn=\d+", f"n={batch}", words)
                title = f"{title} batch {batch}"
            packed_layers.append(item(name, title, words, "mma_f16", "float16"))
    return packed_layers


def _products(name: str, step: int = 1) -> list[PackItem]:
    if name == "gemm":
        sizes = [
            tuple(int(layer.parameters[axis]) for axis in "mnk") for layer in suite("gemm")[::step]
        ]
    else:
        sizes = list(PRODUCTS)
    packed_layers: list[PackItem] = []
    for m, n, k in sizes:
        words = f"gemm m={m} n={n} k={k}"
        packed_layers.append(item(name, f"{name}:{m}x{n}x{k}", words, "mma_f16", "float16"))
        # torch._int_mm, the baseline, takes these sizes alone.
        if m > 16 and n % 8 == 0 and k % 8 == 0:
            packed_layers.append(item(name, f"{name}:{m}x{n}x{k} int8", words, "mma_s8", "int32"))
    return packed_layers


SUITES = {
    "amos12": "the 12 convolutions of ResNet-18 that AMOS reports, at batch 1 and 16",
    "unit16": "16 convolutions of table I of UNIT",
    "deepbench": "108 inference convolutions of DeepBench",
    "products": f"{len(PRODUCTS)} matrix products, of float16 and int8",
    "gemm": "88 inference matrix products of DeepBench",
}
"""Names that ``--suite`` takes."""


def layers(names: tuple[str, ...] = (), machine: str | None = None) -> list[PackItem]:
    """Return all layers of the named suites; without names, of every suite, a part of DeepBench's.

    Parameters
    ----------
    names : tuple of str
        Names of suites.
    machine : str, optional
        Machine whose estimates decide the schedules; by default the targets' first one.

    Raises
    ------
    WorkloadError
        For an unknown name.
    """
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise WorkloadError(f"unknown suite {unknown[0]!r}: use {' '.join(SUITES)}")
    all_layers = bool(names)
    makers = {
        "amos12": lambda: _convolutions("amos12", (1, 16)),
        "unit16": lambda: _convolutions("unit16", (None,)),
        "deepbench": lambda: _convolutions(
            "deepbench", (None,), 1 if all_layers else DEEPBENCH_STEP
        ),
        "products": lambda: _products("products"),
        "gemm": lambda: _products("gemm", 1 if all_layers else GEMM_STEP),
    }
    packed_layers = [layer for name in names or SUITES for layer in makers[name]()]
    if machine is not None:
        packed_layers = [
            replace(layer, spec=hardware_spec(layer.spec, machine=machine))
            for layer in packed_layers
        ]
    # DeepBench lists some products twice.
    return list({(layer.name, layer.spec.name): layer for layer in packed_layers}.values())

"""The comparison of methods: which layers, and what is written of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import methods
from cpembed.runtime.measurement.environment import provenance


def _row(layer: str, noisy: bool = False, **ratios: float) -> dict[str, Any]:
    about = {"largest_error": 1e-5, "largest_output": 10.0}
    found: dict[str, Any] = {name: dict(about) for name in ratios}
    for name in methods.METHODS:
        found.setdefault(name, {"refused": "no kernel"})
    if "winograd_4x4" in ratios:
        found["winograd_4x4"]["bound"] = 0.1
    return {
        "suite": "vgg16",
        "layer": layer,
        "target": "avx512_f32",
        "ratios": ratios,
        "us": {"onednn": 1234.0},
        "chosen": "winograd_4x4",
        "onednn": {
            "implementations": ["brg"],
            "onednn": "3.1",
            "torch": "2.1",
            "max_cpu_isa": None,
        },
        "methods": found,
        "noisy": noisy,
        "elsewhere_cores": 1.5 if noisy else 0.0,
    }


def test_each_layer_is_there_once_and_is_3x3_of_stride_1() -> None:
    found = list(methods.layers(methods.SUITES))
    labels = [layer.label for _, layer in found]
    assert len(set(labels)) == len(labels)
    assert {suite for suite, _ in found} == set(methods.SUITES)
    assert sum(suite == "vgg16" for suite, _ in found) == 9
    for _, layer in found:
        given = layer.parameters
        assert (given["r"], given["s"], given.get("stride", "1")) == ("3", "3", "1")


def test_the_page_has_means_and_every_layer() -> None:
    rows = [
        _row("conv2d a", implicit=1.0, winograd_4x4=4.0),
        _row("conv2d b", noisy=True, implicit=1.0, winograd_4x4=1.0),
    ]
    page = methods.page({"rows": rows, "repeats": rows[:1], **provenance()})
    assert page.count("- oneDNN 3.1 of torch 2.1: brg") == 1
    assert "| a | 1.00 |  |  | 4.00 | winograd_4x4 |" in page
    assert "| vgg16 | 2 | 1.00 | nan | nan | 2.00 | 2.00 | 2.00 | 1.00 | 1 of 2 |" in page
    assert "| a | 1234 | 1.00 |  |  | 4.00 | winograd_4x4 |  |" in page
    assert "| b | 1234 | 1.00 |  |  | 1.00 | winograd_4x4 | yes |" in page
    assert "| a | 1.0e-06 |  | 1.0e-06 (1.0e-04) |" in page
    assert "1 of 2 rows were disturbed: other processes had 1.5 cores" in page
    assert methods.best_of(rows[0]) == ("winograd_4x4", 4.0)


def test_a_geometric_mean() -> None:
    assert methods.geometric([1.0, 4.0]) == pytest.approx(2.0)

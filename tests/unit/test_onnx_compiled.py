"""Cases compiled as one network, and the single ones that are to blame if it fails."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("onnx")

from benchmarks import onnx_compiled
from benchmarks.onnx_compiled import CRASH, RIGHT, Compiler, Part, joined, named
from benchmarks.onnx_operators import Case
from cpembed.errors import LoweringError
from cpembed.graph import kinds
from cpembed.graph.graph import Graph, Operator, evaluate
from cpembed.graph.kinds import TensorType


def part(name: str, factor: float = 2.0) -> Part:
    """A case that multiplies its input."""
    import onnx

    expression = kinds.Apply("mul", (kinds.Input(0), kinds.Input(1)))
    operators = (Operator("op", kinds.Elementwise(expression, "float32"), ("x", "c"), ("y",)),)
    types, constants = {"x": TensorType((2,), "float32")}, {"c": np.float32([factor, factor])}
    graph = Graph("part", types, ("y",), constants, operators)
    x = np.arange(2, dtype=np.float32)
    return Part(Case(name, onnx.ModelProto(), (([x], [x * 2]),), 1e-3, 1e-5), graph, {"x": x})


def test_parts_share_nothing() -> None:
    parts = [part("a", 2.0), part("b", 3.0)]
    graph = joined([p.graph for p in parts])
    inputs = {named(k, "x"): p.inputs["x"] + k for k, p in enumerate(parts)}
    results = evaluate(graph, inputs, lambda name: False)
    assert {name: array.tolist() for name, array in results.items()} == {
        "0:y": [0.0, 2.0],
        "1:y": [3.0, 6.0],
    }


def test_what_fails_is_divided_down_to_single_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(parts: Sequence[Part], target: str) -> list[str]:
        names = [p.case.name for p in parts]
        if "crash" in names:
            os._exit(3)
        if "refused" in names:
            raise LoweringError("no kernel")
        wrong = {"wrong", *(["wrong together"] if len(names) > 1 else [])}
        return [f"WRONG: {name}" if name in wrong else RIGHT for name in names]

    monkeypatch.setattr(onnx_compiled, "compiled_results", compiled)
    names = ["a", "refused", "b", "crash", "wrong", "c", "wrong together", "d"]
    compiler = Compiler("none")
    results = {p.case.name: text for p, text in compiler.results([part(name) for name in names])}
    compiler.close()
    assert results == {
        **dict.fromkeys("abcd", RIGHT),
        "refused": "not compiled: no kernel",
        "crash": CRASH,
        "wrong": "WRONG: wrong",
        "wrong together": "WRONG: wrong together, among other parts",
    }

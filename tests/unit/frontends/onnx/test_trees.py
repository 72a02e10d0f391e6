"""Ensembles of random decision trees, compared with ONNX Runtime, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from cpembed.errors import ModelError
from tests.unit.frontends.onnx.referee import check, loaded, single

ML = "ai.onnx.ml"
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
FEATURES = 4


def ensemble(
    random: np.random.Generator, prefix: str, targets: int, *, modes: list[str], missing: bool
) -> dict[str, Any]:
    """Attributes of random trees; a leaf has a weight for each target but now and then."""
    names = ["treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids"]
    nodes: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    leaves: dict[str, list[Any]] = {
        f"{prefix}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")
    }
    for tree in range(int(random.integers(1, 5))):
        # Node k has the children 2 k + 1 and 2 k + 2 while there are inner nodes.
        inner = int(random.integers(0, 6))
        for node in range(2 * inner + 1):
            is_leaf = node >= inner
            value = float(np.float32(random.integers(-2, 3) / 2))
            row = [tree, node, int(random.integers(FEATURES)), "LEAF", value, 0, 0]
            if not is_leaf:
                row[3], row[5:] = str(random.choice(modes)), [2 * node + 1, 2 * node + 2]
            for column, entry in zip(nodes.values(), row, strict=True):
                column.append(entry)
            for target in range(targets) if is_leaf else ():
                weight = float(np.float32(random.normal()))
                for column, entry in zip(
                    leaves.values(), [tree, node, target, weight], strict=True
                ):
                    column.append(entry)
    count = len(nodes["nodes_treeids"])
    nodes["nodes_hitrates"] = [1.0] * count
    if missing:
        nodes["nodes_missing_value_tracks_true"] = random.integers(0, 2, count).tolist()
    return nodes | leaves


def rows(random: np.random.Generator, *, missing: bool) -> np.ndarray:
    """Rows whose features often are what nodes compare them with."""
    x = (random.integers(-3, 4, (16, FEATURES)) / 2).astype(np.float32)
    return np.where(random.random(x.shape) < 0.2, np.nan, x).astype(np.float32) if missing else x


@pytest.mark.parametrize("seed", range(12))
def test_regressors(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    targets, missing = int(random.integers(1, 4)), seed % 3 == 0
    # Runtimes take a mixture of comparisons, or one alone, by different code.
    modes = MODES[:1] if seed % 2 else MODES
    attributes = ensemble(random, "target", targets, modes=modes, missing=missing)
    attributes["aggregate_function"] = ["SUM", "AVERAGE", "MIN", "MAX"][seed % 4]
    if seed % 4 < 2:
        attributes["base_values"] = random.normal(size=targets).astype(np.float32).tolist()
    x = rows(random, missing=missing)
    model = single("TreeEnsembleRegressor", [x], domain=ML, n_targets=targets, **attributes)
    check(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("seed", range(3))
def test_classifiers(seed: int, transform: str, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    classes = seed + 3
    attributes = ensemble(random, "class", classes, modes=MODES[:1], missing=False)
    labels = (random.permutation(classes) * 7 - 3).tolist()
    x = rows(random, missing=False)
    model = single(
        "TreeEnsembleClassifier", [x], outputs=2, domain=ML, classlabels_int64s=labels,
        post_transform=transform, **attributes,
    )  # fmt: skip
    check(model, {"x0": x}, tmp_path)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("is_share", [False, True], ids=["any weights", "positive weights"])
@pytest.mark.parametrize("target", [0, 1])
def test_classifiers_of_two_classes(
    target: int, is_share: bool, transform: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(5)
    attributes = ensemble(random, "class", 1, modes=MODES[:1], missing=False)
    attributes["class_ids"] = [target] * len(attributes["class_ids"])
    if is_share:
        attributes["class_weights"] = [abs(w) / 4 for w in attributes["class_weights"]]
    x = rows(random, missing=False)
    model = single(
        "TreeEnsembleClassifier", [x], outputs=2, domain=ML, classlabels_int64s=[4, 9],
        post_transform=transform, **attributes,
    )  # fmt: skip
    check(model, {"x0": x}, tmp_path)


SINGLE = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
    "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize("change, message", [
    ({"nodes_featureids": [9, 0, 0]}, "beyond the 4 of the input"),
    ({"nodes_truenodeids": [7, 0, 0]}, "names node 7 of tree 0, which does not exist"),
    ({"nodes_truenodeids": [0, 0, 0]}, "among its own descendants"),
    ({"nodes_nodeids": [0, 1, 1]}, "a node occurs twice"),
    ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "NEITHER"]}, "a mode that is not known"),
    ({"nodes_values": [0.5]}, "nodes_values has 1 elements for 3"),
    ({"target_ids": [0, 3]}, "target 3"),
    ({"post_transform": "PROBIT"}, "PROBIT"),
    ({"nodes_treeids": [0] * 5, "nodes_nodeids": [0, 1, 2, 3, 4], "nodes_featureids": [0] * 5,
      "nodes_modes": ["LEAF", *["BRANCH_LT"] * 2, "LEAF", "LEAF"], "nodes_values": [0.0] * 5,
      "nodes_truenodeids": [0, 2, 1, 0, 0], "nodes_falsenodeids": [0, 3, 4, 0, 0]},
     "among its own descendants"),
])  # fmt: skip
def test_trees_that_are_none_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    x = np.zeros((2, FEATURES), np.float32)
    model = single("TreeEnsembleRegressor", [x], domain=ML, n_targets=1, **{**SINGLE, **change})
    with pytest.raises(ModelError, match=message):
        loaded(model, tmp_path)

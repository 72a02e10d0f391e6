"""Ensembles of decision trees of the domain ``ai.onnx.ml``.

Every tree takes one step a level, in all rows at once: what a row's node compares is gathered, and
the next node is its child on that side. Leaves are their own children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cpembed.frontends.expressions import X, Y, add, differ, div, equal, less, mul, sub, where
from cpembed.frontends.onnx.call import Call, Translation
from cpembed.frontends.onnx.operators.classical import TRANSFORMS, feature_rows, transformed_scores
from cpembed.graph.kinds import Concat, Gather, Input, Reduce, Scalar
from cpembed.ir.scalars import apply

Array = NDArray[Any]

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF")
_MOST_NODES = 1 << 24
"""Maximum number of weights of all nodes."""


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees.

    Attributes
    ----------
    features, values, modes : array
        Feature that each node compares, the number that it compares it with, and the comparison's
        place in the format's list.
    children : array [nodes, 2]
        Next nodes if the comparison is false, and if it is true.
    missing : array of bool
        True for nodes that take the second child if the feature is NaN, whatever they compare.
    roots : array
        First node of each tree.
    depth : int
        Number of comparisons on the longest path.
    """

    features: Array
    values: Array
    modes: Array
    children: Array
    missing: Array
    roots: Array
    depth: int


def _list(call: Call, name: str, size: int | None = None, default: Any = None) -> list[Any]:
    """Return an attribute that is a list with an element for each node."""
    values = call.attribute(name)
    items = [*cast("Sequence[Any]", values)] if isinstance(values, tuple | list) else []
    if not items and default is not None and size is not None:
        items = [default] * size
    if size is not None and len(items) != size:
        call.reject(f"attribute {name} has {len(items)} elements for {size}: give one for each")
    return items


def _numbers(call: Call) -> dict[tuple[int, int], int]:
    """Return the number of each node by the tree's and its own in the file."""
    trees = _list(call, "nodes_treeids")
    nodes = _list(call, "nodes_nodeids", len(trees))
    numbers = {
        (int(tree), int(node)): k for k, (tree, node) in enumerate(zip(trees, nodes, strict=True))
    }
    if len(numbers) != len(trees) or not trees:
        call.reject("a node occurs twice, or there is none")
    return numbers


def _trees(call: Call, features: int) -> Trees:
    """Return the nodes of an operator's attributes."""
    numbers = _numbers(call)
    size = len(numbers)
    # How often nodes are reached is a hint, which changes no result.
    call.attribute("nodes_hitrates")
    names = _list(call, "nodes_modes", size)
    modes = np.array([_MODES.index(str(n)) if str(n) in _MODES else -1 for n in names])
    if (modes < 0).any():
        call.reject(f"nodes_modes has a mode that is not known: use {', '.join(_MODES)}")
    is_leaf = modes == len(_MODES) - 1
    compared = np.array(_list(call, "nodes_featureids", size), np.int64)
    compared = np.where(is_leaf, 0, compared)
    if (compared < 0).any() or (compared >= features).any():
        call.reject(f"a node compares a feature beyond the {features} of the input")
    children = np.repeat(np.arange(size), 2).reshape(size, 2)
    for side, name in enumerate(("nodes_falsenodeids", "nodes_truenodeids")):
        for k, ((tree, _), child) in enumerate(zip(numbers, _list(call, name, size), strict=True)):
            if not is_leaf[k]:
                if (tree, int(child)) not in numbers:
                    call.reject(f"{name} names node {child} of tree {tree}, which does not exist")
                children[k, side] = numbers[tree, int(child)]
    is_child = np.zeros(size, bool)
    is_child[children[~is_leaf].reshape(-1)] = True
    roots = np.flatnonzero(~is_child)
    if len(roots) != len({tree for tree, _ in numbers}):
        call.reject("the nodes of a tree do not descend from one")
    return Trees(
        compared,
        np.array(_list(call, "nodes_values", size), np.float32),
        modes,
        children,
        np.array(_list(call, "nodes_missing_value_tracks_true", size, 0), bool),
        roots,
        _depth(call, children, is_leaf, roots),
    )


def _depth(call: Call, children: Array, is_leaf: Array, roots: Array) -> int:
    """Return the number of comparisons on the longest path from a root."""
    level, depth, reached = roots, 0, {*roots.tolist()}
    # A path that is longer than all nodes visits one of them twice.
    while (level := level[~is_leaf[level]]).size and depth <= len(children):
        level = np.unique(children[level])
        reached.update(level.tolist())
        depth += 1
    if depth > len(children) or len(reached) < len(children):
        call.reject("a node is among its own descendants, or not among those of its tree's root")
    return depth


def _weights(call: Call, prefix: str, targets: int) -> Array:
    """Return the weights [nodes, targets] of the leaves; NaN where a leaf has none."""
    numbers = _numbers(call)
    trees = _list(call, f"{prefix}_treeids")
    columns = [
        _list(call, f"{prefix}_{name}", len(trees)) for name in ("nodeids", "ids", "weights")
    ]
    if len(numbers) * targets > _MOST_NODES:
        call.reject(f"{len(numbers)} nodes with {targets} weights are more than {_MOST_NODES}")
    weights = np.full((len(numbers), targets), np.nan, np.float32)
    for tree, node, target, weight in zip(trees, *columns, strict=True):
        place = numbers.get((int(tree), int(node)))
        if place is None or not 0 <= int(target) < targets:
            call.reject(f"a weight is of node {node} of tree {tree}, target {target}")
        old = weights[place, int(target)]
        weights[place, int(target)] = weight if np.isnan(old) else old + np.float32(weight)
    return weights


def _compared(trees: Trees) -> Scalar:
    """Return whether a feature, input 0, meets the comparison of a node with its value, input 1.

    Where nodes differ in their comparison, input 2 is its place in the list.
    """
    forms: Sequence[Scalar] = (
        apply("less_equal", X, Y),
        less(X, Y),
        apply("less_equal", Y, X),
        less(Y, X),
        equal(X, Y),
        differ(X, Y),
    )
    modes: list[int] = sorted({*trees.modes.tolist()} - {len(_MODES) - 1}) or [0]
    result = forms[modes[-1]]
    for mode in modes[-2::-1]:
        result = where(equal(Input(2), mode), forms[mode], result)
    return result


def _leaves(call: Call, trees: Trees, x: str) -> str:
    """Emit the leaf [rows, trees] that each row reaches."""
    rows, count = call.shape(x)[0], len(trees.roots)
    node = call.expanded(call.tensor(trees.roots[None, :].astype(np.int64)), (rows, count))
    several = len({*trees.modes.tolist()} - {len(_MODES) - 1}) > 1
    tables = [trees.values, *([trees.modes.astype(np.float32)] if several else [])]
    constants = [call.tensor(table) for table in tables]
    features = call.tensor(trees.features.astype(np.int64))
    children = call.tensor(trees.children.reshape(-1).astype(np.int64))
    missing = call.tensor(trees.missing.astype(np.float32)) if trees.missing.any() else None
    compared = _compared(trees)
    for _ in range(trees.depth):
        feature = call.gathered_elements(x, call.emit(Gather(0), features, node), 1)
        arguments = [feature, *(call.emit(Gather(0), table, node) for table in constants)]
        expression = compared
        if missing is not None:
            tracks = Input(len(arguments))
            arguments.append(call.emit(Gather(0), missing, node))
            is_missing = apply("and", differ(X, X), less(0.0, tracks))
            expression = apply("or", is_missing, compared)
        side = call.elementwise(expression, *arguments, dtype="bool")
        place = call.elementwise(add(mul(X, 2), Y), node, call.cast(side, "int64"))
        node = call.emit(Gather(0), children, place)
    return node


def _scores(call: Call, x: str, prefix: str, targets: int, operation: str) -> str:
    """Emit the scores [rows, targets], with the base values."""
    trees = _trees(call, call.shape(x)[1])
    weights = _weights(call, prefix, targets)
    is_leaf = trees.modes == len(_MODES) - 1
    if operation in ("MIN", "MAX") and np.isnan(weights[is_leaf]).any():
        call.reject(f"aggregate_function {operation} of leaves without a weight for each target")
    leaves = call.emit(Gather(0), call.tensor(np.nan_to_num(weights)), _leaves(call, trees, x))
    kind = {"MIN": "min", "MAX": "max"}.get(operation, "sum")
    scores = call.emit(Reduce(kind, (1,), False), leaves)
    if operation == "AVERAGE":
        scores = call.elementwise(div(X, float(len(trees.roots))), scores)
    if base := _list(call, "base_values"):
        if len(base) != targets:
            call.reject(f"{len(base)} base_values of {targets} scores: give one for each")
        scores = call.elementwise(add(X, Y), scores, call.tensor(np.asarray(base, np.float32)))
    return scores


def _regressor(call: Call) -> str:
    functions = ("SUM", "AVERAGE", "MIN", "MAX")
    operation = call.text("aggregate_function", "SUM", functions)
    targets = call.integer("n_targets", 1)
    return transformed_scores(call, _scores(call, feature_rows(call), "target", targets, operation))


def _classifier(call: Call) -> Sequence[str]:
    labels = _list(call, "classlabels_int64s")
    names = _list(call, "classlabels_strings")
    count, x = len(labels) or len(names), feature_rows(call)
    if names and call.is_read[0]:
        call.reject("labels are texts, and a network holds numbers: read the scores alone")
    identifiers = {int(k) for k in _list(call, "class_ids")}
    if count == 2 and len(identifiers) == 1:
        scores, place = _of_two_classes(call, x, *identifiers)
    else:
        scores = _scores(call, x, "class", count, "SUM")
        place = call.emit(Reduce("argmax", (1,), False), scores)
        scores = transformed_scores(call, scores)
    if not labels:
        return place, scores
    return call.emit(Gather(0), call.tensor(np.array(labels, np.int64)), place), scores


def _of_two_classes(call: Call, x: str, target: int) -> tuple[str, str]:
    """Emit the scores of two classes, and the place of the label, if leaves weight one of them."""
    weights = _list(call, "class_weights")
    transform = call.text("post_transform", "NONE", TRANSFORMS)
    if _list(call, "base_values") or transform == "SOFTMAX":
        call.reject("base_values or SOFTMAX of a classifier with weights of one class are not read")
    # Weights of the first class alone are those of the second, whose complement the first one is.
    scores = _scores(call, x, "class", target + 1, "SUM")
    score = call.part(scores, 1, target, target + 1)
    # Weights that are all positive are probabilities; others are compared with 0.
    is_share = min(weights) >= 0
    is_second = call.elementwise(less(0.5 if is_share else 0.0, X), score, dtype="bool")
    place = call.reshaped(call.cast(is_second, "int64"), call.shape(score)[:1])
    if target == 0:
        is_probability = is_share and transform == "NONE"
        complement = sub(1.0, X) if is_probability else apply("neg", X)
        scores = call.emit(Concat(1), call.elementwise(complement, score), score)
    return transformed_scores(call, scores), place


TABLE: dict[str, Translation] = {
    "ai.onnx.ml.TreeEnsembleClassifier": _classifier,
    "ai.onnx.ml.TreeEnsembleRegressor": _regressor,
}

"""Layers of a benchmark: a shipped suite, a user's table, or the products of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpembed.driver.matching import prepared_for, typed_for
from cpembed.driver.named import default_dtypes, is_typed, typed_by_roles
from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.product import Product
from cpembed.graph.loop import nested_operators
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.targets.units import units_of
from cpembed.workloads.suites import SUITES, Layer, suite
from cpembed.workloads.user_suites import ComputedLayer, is_table, read_suite

MODELS = (".onnx", ".pt2")
"""Suffixes of model files."""


@dataclass(frozen=True)
class NamedSuite:
    """Layers with the name under which their rows are stored.

    Parameters
    ----------
    name : str
        Name of a shipped suite, or of a file without its folder.
    layers : tuple of Layer
        The layers, by index.
    digest : str, optional
        Digest of the layers of a file, whose content may change under its name; None for a shipped
        suite.
    graph : Graph, optional
        Prepared network, if the file is a model.
    """

    name: str
    layers: tuple[Layer, ...]
    digest: str | None = None
    graph: Graph | None = None


def named_suite(
    name: str, spec: HardwareSpec, shapes: Mapping[str, Sequence[int]] | None = None
) -> NamedSuite:
    """Load a suite; a model is prepared for a target.

    Parameters
    ----------
    name : str
        Name of a shipped suite, or path of a table of layers (CSV) or of a model.
    spec : HardwareSpec
        Target that a model is prepared for.
    shapes : dict of str to sequence of int, optional
        Shapes of inputs whose sizes the model leaves open.

    Returns
    -------
    NamedSuite
        The layers.

    Raises
    ------
    WorkloadError
        If the name is unknown, the file cannot be read, or shapes are given without a model.
    """
    return prepared_suite(name, lambda graph: prepared_for(graph, units_of(spec)), shapes)


def prepared_suite(
    name: str,
    prepared: Callable[[Graph], Graph],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> NamedSuite:
    """Load a suite; a model is prepared by a function of the caller.

    Parameters
    ----------
    name : str
        Name of a shipped suite, or path of a table of layers (CSV) or of a model.
    prepared : callable
        Returns the prepared form of a model's graph.
    shapes : dict of str to sequence of int, optional
        Shapes of inputs whose sizes the model leaves open.

    Returns
    -------
    NamedSuite
        The layers.

    Raises
    ------
    WorkloadError
        As :func:`named_suite` does.
    """
    is_model = name.lower().endswith(MODELS)
    if shapes and not is_model:
        raise WorkloadError(f"{name} is not a model and has no inputs: leave --shape (shapes=) out")
    if is_table(name):
        return _suite_of_file(Path(name).name, read_suite(Path(name)))
    if is_model:
        graph = prepared(_model(name, shapes))
        named = _suite_of_file(Path(name).name, model_layers(graph, Path(name).name))
        return replace(named, graph=graph)
    if name not in SUITES:
        raise WorkloadError(
            f"unknown suite {name!r}: use {' '.join(SUITES)}, or a file: a table as .csv, or a "
            f"model as {' or '.join(MODELS)}"
        )
    return NamedSuite(name, suite(name))


def model_layers(graph: Graph, name: str) -> tuple[Layer, ...]:
    """Return the distinct products of a network as layers, counted.

    Raises :class:`WorkloadError` if the network has no products.
    """
    counts: dict[Computation, int] = {}
    first: dict[Computation, str] = {}
    # A product inside a loop is a layer for each of its steps.
    for operator, _, times in nested_operators(graph):
        if isinstance(operator.kind, Product):
            key = product_key(operator.kind.computation)
            counts[key] = counts.get(key, 0) + times
            first.setdefault(key, operator.name)
    if not counts:
        raise WorkloadError(
            f"{name} has no products, such as convolutions: there is nothing to run"
        )
    sizes = {key: _label(key) for key in counts}
    labels = list(sizes.values())
    return tuple(
        ComputedLayer(
            name,
            index,
            first[key],
            # Products of the same sizes may differ in strides: their operators' names do too.
            sizes[key] if labels.count(sizes[key]) == 1 else f"{sizes[key]} ({first[key]})",
            counts[key],
            computation=key,
        )
        for index, key in enumerate(counts)
    )


def product_key(computation: Computation) -> Computation:
    """Return the computation without the operator's name: the key of its layer.

    Products that compute the same are equal then, and one :attr:`ComputedLayer.computation`.
    """
    return replace(computation, name=_family(computation))


def layer_workload(layer: Layer, spec: HardwareSpec, layout: str = "NCHW") -> Computation:
    """Return the computation of a layer on the element types of a target, or on those it names.

    Parameters
    ----------
    layer : Layer
        Layer of a suite, a table or a model.
    spec : HardwareSpec
        Target.
    layout : str, default "NCHW"
        Layout of its tensors.

    Raises
    ------
    WorkloadError
        If the layer has no such layout: those of tables and models have the default alone.
    """
    if isinstance(layer, ComputedLayer):
        return typed_for(layer.workload(layout=layout), spec)
    workload = layer.workload(default_dtypes(spec), layout)
    return workload if is_typed([layer.label]) else typed_by_roles(workload, spec.instruction)


def _model(path: str, shapes: Mapping[str, Sequence[int]] | None) -> Graph:
    from cpembed.frontends import load_model

    return load_model(Path(path), shapes)


def _suite_of_file(name: str, layers: tuple[Layer, ...]) -> NamedSuite:
    return NamedSuite(name, layers, hashlib.sha256(repr(layers).encode()).hexdigest())


def _family(computation: Computation) -> str:
    return computation.name.split()[0] if computation.name.strip() else "product"


def _label(computation: Computation) -> str:
    sizes = " ".join(f"{axis}={extent}" for axis, extent in computation.extents.items())
    return f"{computation.name} {sizes}"

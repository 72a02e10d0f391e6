"""The layers that a benchmark is of: a shipped suite, a table of a user's own, or a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cpembed.driver.matching import prepared_for, typed_for
from cpembed.errors import WorkloadError
from cpembed.graph.graph import Graph
from cpembed.graph.kinds.product import Product
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.workloads.suites import SUITES, Layer, suite
from cpembed.workloads.user_suites import ComputedLayer, is_table, read_suite

MODELS = (".onnx", ".pt2")
"""How names of files with models end."""


@dataclass(frozen=True)
class NamedSuite:
    """``digest`` is of the layers of a user's own suite; None of a shipped one, which its name
    says. ``graph``: of a model, prepared."""

    name: str
    layers: tuple[Layer, ...]
    digest: str | None = None
    graph: Graph | None = None


def named_suite(
    name: str, spec: HardwareSpec, shapes: Mapping[str, Sequence[int]] | None = None
) -> NamedSuite:
    """By a shipped name, or the path of a CSV file or of a model, prepared for the target;
    ``shapes``: sizes of inputs that the model leaves open.

    Raises :class:`WorkloadError` for an unknown name and a file that cannot be read.
    """
    return prepared_suite(name, lambda graph: prepared_for(graph, spec), shapes)


def prepared_suite(
    name: str,
    prepared: Callable[[Graph], Graph],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> NamedSuite:
    """:func:`named_suite` for what prepares models itself."""
    is_model = name.lower().endswith(MODELS)
    if shapes and not is_model:
        raise WorkloadError(f"{name} is no model and has no inputs: leave --shape (shapes=) out")
    if is_table(name):
        return _own(Path(name).name, read_suite(Path(name)))
    if is_model:
        graph = prepared(_model(name, shapes))
        own = _own(Path(name).name, model_layers(graph, Path(name).name))
        return replace(own, graph=graph)
    if name not in SUITES:
        raise WorkloadError(
            f"unknown suite {name!r}: use {' '.join(SUITES)}, or a file: a table as .csv, or a "
            f"model as {' or '.join(MODELS)}"
        )
    return NamedSuite(name, suite(name))


def model_layers(graph: Graph, name: str) -> tuple[Layer, ...]:
    """The distinct products of a network, each with how often the network has it.

    Raises :class:`WorkloadError` where it has none.
    """
    counts: dict[Computation, int] = {}
    first: dict[Computation, str] = {}
    for operator in graph.operators:
        if isinstance(operator.kind, Product):
            key = product_key(operator.kind.computation)
            counts[key] = counts.get(key, 0) + 1
            first.setdefault(key, operator.name)
    if not counts:
        raise WorkloadError(
            f"{name} has no products, such as convolutions: there is nothing to run"
        )
    sizes = {key: _label(key) for key in counts}
    known = list(sizes.values())
    return tuple(
        ComputedLayer(
            name,
            index,
            first[key],
            # Sizes do not say the strides.
            sizes[key] if known.count(sizes[key]) == 1 else f"{sizes[key]} ({first[key]})",
            counts[key],
            computation=key,
        )
        for index, key in enumerate(counts)
    )


def product_key(computation: Computation) -> Computation:
    """What products that compute the same have in common: the :attr:`ComputedLayer.computation` of
    their layer."""
    return replace(computation, name=_family(computation))


def layer_workload(layer: ComputedLayer, layout: str, spec: HardwareSpec) -> Computation:
    """On the element types of a target."""
    return typed_for(layer.workload(layout=layout), spec)


def _model(path: str, shapes: Mapping[str, Sequence[int]] | None) -> Graph:
    from cpembed.frontends import load_model

    return load_model(Path(path), shapes)


def _own(name: str, layers: tuple[Layer, ...]) -> NamedSuite:
    return NamedSuite(name, layers, hashlib.sha256(repr(layers).encode()).hexdigest())


def _family(computation: Computation) -> str:
    return computation.name.split()[0] if computation.name.strip() else "product"


def _label(computation: Computation) -> str:
    sizes = " ".join(f"{axis}={extent}" for axis, extent in computation.extents.items())
    return f"{computation.name} {sizes}"

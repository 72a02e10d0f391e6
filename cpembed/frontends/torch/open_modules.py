"""Captured modules with open sizes: networks for ranges of sizes instead of one for each size.

Dynamo passes an open size as a symbolic integer. Where all inputs of a module have shapes of such
symbols and of numbers, the module is read at any of them, so that each of its networks is a family,
compiled once. A range ends where PyTorch says that it does (``mark_dynamic(x, 0, max=512)``), or
else at a power of two that is four times the first size or more; a larger size makes it larger.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find, and not this package.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from cpembed.errors import BackendUnavailable, CpembedError, ModelError
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph

LARGEST_DECLARED = 1 << 14
"""Maximum end of a range that PyTorch states; larger ones are no statement about sizes."""

# Largest size of a range that PyTorch does not state, relative to the first one.
_GROWTH = 4

# Maximum number of modules that call networks and have sizes in their own parts.
_MOST_MODULES = 64

Shape = tuple["int | str", ...]
"""Sizes of a tensor: numbers, and names of symbols."""


@dataclass(frozen=True)
class OpenShapes:
    """Shapes of a captured module's inputs.

    Attributes
    ----------
    inputs : tuple of tuple, str or None
        Shape of a tensor, the symbol of a symbolic integer, None for a parameter.
    limits : mapping from str to tuple
        Least size of each symbol, and the largest one if PyTorch states it.
    """

    inputs: tuple[Shape | str | None, ...]
    limits: Mapping[str, tuple[int, int | None]]

    def sizes_of(self, arguments: Sequence[Any]) -> dict[str, int] | None:
        """Return the size of each symbol in a call; None for arguments of other shapes.

        Tensors that are not contiguous are other arguments.
        """
        sizes: dict[str, int] = {}
        for shape, value in zip(self.inputs, arguments, strict=True):
            pairs: list[tuple[int | str, int]] = []
            if isinstance(shape, str):
                pairs = [(shape, int(value))]
            elif shape is not None:
                if len(shape) != value.dim() or not value.is_contiguous():
                    return None
                pairs = list(zip(shape, value.shape, strict=True))
            for size, number in pairs:
                expected = sizes.setdefault(size, number) if isinstance(size, str) else size
                if expected != number:
                    return None
        return sizes if sizes.keys() == self.limits.keys() else None

    def arguments_at(self, arguments: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """Return arguments of other sizes, whose elements mean nothing."""
        result: list[Any] = []
        for shape, value in zip(self.inputs, arguments, strict=True):
            if isinstance(shape, str):
                result.append(sizes[shape])
            elif shape is None:
                result.append(value)
            else:
                numbers = [sizes[n] if isinstance(n, str) else n for n in shape]
                result.append(torch.zeros(numbers, dtype=value.dtype))
        return result


def open_shapes(
    placeholders: Sequence[torch.fx.Node], parameters: Sequence[bool]
) -> OpenShapes | None:
    """Return the shapes of a captured module; None where no size is open, or one is no symbol."""
    inputs: list[Shape | str | None] = []
    limits: dict[str, tuple[int, int | None]] = {}

    def symbol(size: Any) -> int | str | None:
        node = getattr(size, "node", None)
        if node is None:
            return size if isinstance(size, int) else None
        if node.is_constant() or not node.expr.is_Symbol:
            return None
        name = str(node.expr)
        limits.setdefault(name, _limits(node))
        return name

    for placeholder, is_parameter in zip(placeholders, parameters, strict=True):
        value = placeholder.meta.get("example_value")
        if is_parameter:
            inputs.append(None)
        elif isinstance(value, torch.Tensor):
            shape = tuple(map(symbol, value.shape))
            if None in shape:
                return None
            inputs.append(tuple(size for size in shape if size is not None))
        else:
            name = symbol(value)
            if not isinstance(name, str):
                return None
            inputs.append(name)
    named = {size for shape in inputs if isinstance(shape, tuple) for size in shape}
    # A number that is no size of a tensor may be anything.
    return OpenShapes(tuple(inputs), limits) if limits and named >= limits.keys() else None


def _limits(node: Any) -> tuple[int, int | None]:
    """Return the least and the largest size of a symbol; None for a largest that is not stated."""
    bounds = node.shape_env.bound_sympy(node.expr)
    low, high = (int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
    stated = high is not None and high <= LARGEST_DECLARED
    return max(1, low or 1), high if stated else None


def is_free_of_sizes(module: torch.fx.GraphModule) -> bool:
    """True if a module calls networks and nothing else, so that it has no size in its text."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if node.op == "get_attr" or (
                node.op == "call_function" and node.target is not operator.getitem
            ):
                return False
            leaves = pytree.tree_leaves(node.args) if node.op == "output" else ()
            if not all(isinstance(leaf, torch.fx.Node) for leaf in leaves):
                return False
    return True


Read = Callable[[Mapping[str, int]], Sequence[Graph]]
"""Function that reads the networks of a module at some sizes."""


@dataclass
class OpenNetworks:
    """Networks of a module for ranges of sizes.

    Attributes
    ----------
    shapes : OpenShapes
    read : callable
    compile_family : callable
        Compiles a family, or raises :class:`~cpembed.errors.CpembedError`.
    """

    shapes: OpenShapes
    read: Read
    compile_family: Callable[[Family], Any]
    ranges: dict[str, range] = field(default_factory=dict[str, range])
    networks: list[Any] = field(default_factory=list[Any])
    seconds: list[float] = field(default_factory=list[float])
    runs: dict[tuple[int, ...], Callable[..., Any]] = field(
        default_factory=dict[tuple[int, ...], Callable[..., Any]]
    )
    _graphs: dict[tuple[int, ...], Sequence[Graph]] = field(
        default_factory=dict[tuple[int, ...], Sequence[Graph]]
    )

    def covers(self, sizes: Mapping[str, int]) -> bool:
        """True if the networks compute some sizes."""
        return bool(self.networks) and all(n in self.ranges[name] for name, n in sizes.items())

    def extend(self, sizes: Mapping[str, int]) -> None:
        """Compile networks for ranges that hold some sizes, and all sizes so far.

        Raises :class:`~cpembed.errors.CpembedError` where the sizes cannot be ranges.
        """
        wide, narrow = (self._ranges_for(sizes, growth) for growth in (_GROWTH, 1))
        try:
            self._compile(wide)
        except BackendUnavailable:
            raise
        except CpembedError:
            # A module may have no larger sizes, such as those beyond a table of positions.
            self._compile(narrow)

    def _ranges_for(self, sizes: Mapping[str, int], growth: int) -> dict[str, range]:
        """Return ranges for sizes that may grow, and for all sizes so far."""
        ranges: dict[str, range] = {}
        for name, (low, stated) in self.shapes.limits.items():
            size = sizes[name]
            before = self.ranges.get(name, range(size, size + 1))
            largest = max(size, before[-1])
            high = largest if growth == 1 else 1 << (growth * size - 1).bit_length()
            ranges[name] = range(min(low, size), max(stated or high, largest) + 1)
        return ranges

    def _compile(self, ranges: Mapping[str, range]) -> None:
        self.networks = []
        count = len(self._at({name: sizes[-1] for name, sizes in ranges.items()}))
        families = [
            Family(f"network_{k}", ranges, lambda sizes, k=k: self._network(sizes, k))
            for k in range(count)
        ]
        networks: list[Any] = []
        self.seconds = []
        for family in families:
            started = time.perf_counter()
            networks.append(self.compile_family(family))
            self.seconds.append(time.perf_counter() - started)
        self.ranges, self.networks = dict(ranges), networks

    def run_at(self, sizes: Mapping[str, int]) -> Callable[..., Any] | None:
        """Return the module that calls the networks at some sizes, if it was made before."""
        return self.runs.get(()) or self.runs.get(tuple(sizes.values()))

    def keep(self, sizes: Mapping[str, int], module: torch.fx.GraphModule) -> Callable[..., Any]:
        """Remember the module that calls the networks at some sizes, at all if it has none."""
        if len(self.runs) >= _MOST_MODULES:
            self.runs.pop(next(iter(self.runs)))
        self.runs[() if is_free_of_sizes(module) else tuple(sizes.values())] = module
        return module

    def _network(self, sizes: Mapping[str, int], number: int) -> Graph:
        graphs = self._at(sizes)
        if number >= len(graphs):
            raise ModelError(f"it has {len(graphs)} networks there")
        return graphs[number]

    def _at(self, sizes: Mapping[str, int]) -> Sequence[Graph]:
        key = tuple(sizes.values())
        if key not in self._graphs:
            try:
                self._graphs[key] = self.read(sizes)
            except CpembedError:
                raise
            except Exception as error:
                # PyTorch raises many kinds of errors for a module that has no such sizes.
                reason = str(error).strip().partition("\n")[0]
                raise ModelError(f"PyTorch does not export it: {reason}") from error
        return self._graphs[key]

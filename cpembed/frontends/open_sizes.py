"""Sizes that a model leaves open, as callers state them: a graph, or a family of graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cpembed.errors import ModelError, WorkloadError
from cpembed.graph.family import Family
from cpembed.graph.graph import Graph

Size = int | range
"""One size, or all from the range's first to its last."""
Request = Mapping[str, Size | Sequence[Size]]
"""Shapes of inputs by the inputs' names, and sizes of open dimensions by the dimensions' names."""

# Names that exporters give to dimensions of which they know nothing.
_NAMELESS = ("", "?")


@dataclass(frozen=True)
class OpenModel:
    """Model whose graph can be read at any sizes.

    Attributes
    ----------
    name : str
        Name of the model in messages.
    inputs : mapping from str to tuple or None
        Sizes of each input: a number, the name of an open one, -1 or an empty name for one without
        a name; None for an open number of dimensions.
    read : callable
        Function that reads the graph with the shapes of some inputs, and rejects open sizes that
        these leave.
    """

    name: str
    inputs: Mapping[str, tuple[int | str, ...] | None]
    read: Callable[[Mapping[str, Sequence[int]]], Graph] = field(repr=False)

    def fixed(self, request: Request) -> Graph:
        """Return the graph at sizes that are no ranges; raise :class:`ModelError` for a range."""
        network = self.at(request)
        if isinstance(network, Family):
            raise ModelError(
                f"{self.name}: {network.ranges_text} is a range of sizes, which build, network and "
                "compile take: give one size here"
            )
        return network

    def at(self, request: Request) -> Graph | Family:
        """Return the graph at the sizes of a request, or the family if one of them is a range.

        Raises :class:`ModelError` for names that the model does not have, and for contradictions.
        """
        resolver = _Resolver(self)
        for name, sizes in request.items():
            resolver.add(name, sizes)
        ranges = {name: size for name, size in resolver.sizes.items() if isinstance(size, range)}
        if not ranges:
            return self.read(resolver.shapes({}))
        try:
            return Family(self.name, ranges, lambda sizes: self.read(resolver.shapes(sizes)))
        except WorkloadError as error:
            raise ModelError(str(error)) from None


@dataclass
class _Resolver:
    """Symbols in the shapes of a model's inputs, and the sizes that they have."""

    model: OpenModel
    sizes: dict[str, Size] = field(default_factory=dict[str, "Size"])
    stated: dict[str, tuple[int | str, ...]] = field(
        default_factory=dict[str, "tuple[int | str, ...]"]
    )

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self.model.name}: {text}")

    @property
    def dimensions(self) -> list[str]:
        """Names of the open dimensions."""
        shapes = (shape or () for shape in self.model.inputs.values())
        names = (size for shape in shapes for size in shape if isinstance(size, str))
        return [name for name in dict.fromkeys(names) if name not in _NAMELESS]

    def add(self, name: str, sizes: Size | Sequence[Size]) -> None:
        """Add the shape of an input, or the size of a dimension."""
        owner, _, axis = name.rpartition(":")
        if name in self.model.inputs:
            self._input(name, (sizes,) if isinstance(sizes, int | range) else tuple(sizes))
        elif owner in self.model.inputs and axis.isdecimal():
            self._axis(owner, int(axis), (sizes,) if isinstance(sizes, int | range) else sizes)
        elif name in self.dimensions:
            only = sizes if isinstance(sizes, int | range) else (*sizes, *sizes)[0]
            if not isinstance(sizes, int | range) and len(sizes) != 1:
                raise self.error(f"{name} is one dimension, not {len(sizes)}: give it one size")
            self._size(name, only)
        else:
            inputs = ", ".join(self.model.inputs) or "none"
            open_names = ", ".join(self.dimensions) or "none"
            raise ModelError(
                f"{self.model.name} has no input {name}: its inputs are {inputs}, its open "
                f"dimensions {open_names}"
            )

    def _size(self, name: str, size: Size) -> None:
        single = size[0] if isinstance(size, range) and len(size) == 1 else size
        if self.sizes.setdefault(name, single) != single:
            sizes = f"{size_text(self.sizes[name])} and as {size_text(single)}"
            raise self.error(f"the size {name} is given as {sizes}: give one")

    def _axis(self, name: str, axis: int, sizes: Sequence[Size]) -> None:
        """Add the size of one axis of an input."""
        declared = self.stated.get(name, self.model.inputs[name])
        text = ",".join(map(size_text, sizes))
        if declared is None or axis >= len(declared) or len(sizes) != 1:
            has = "no declared shape" if declared is None else f"{len(declared)} dimensions"
            raise self.error(
                f"{name}:{axis}={text} is not one size of axis {axis} of input {name}, which has "
                f"{has}: give {name}:AXIS=SIZE or its shape {name}=SIZES"
            )
        size, symbol = declared[axis], f"{name}.{axis}"
        if isinstance(size, str) and size not in _NAMELESS:
            symbol = size
        elif isinstance(size, int) and size >= 0 and sizes[0] != size:
            raise self.error(
                f"dimension {axis} of input {name} is {size} in the model, not {text}: give "
                f"{size}, or export the model anew"
            )
        self._size(symbol, sizes[0])
        self.stated[name] = (*declared[:axis], symbol, *declared[axis + 1 :])

    def _input(self, name: str, shape: tuple[Size, ...]) -> None:
        declared = self.model.inputs[name]
        if declared is not None and len(declared) != len(shape):
            text = ",".join(map(size_text, shape))
            raise self.error(
                f"input {name} has {len(declared)} dimensions, the shape {text} has {len(shape)}"
            )
        result: list[int | str] = []
        for axis, size in enumerate(shape):
            open_size = -1 if declared is None else declared[axis]
            is_named = isinstance(open_size, str) and open_size not in _NAMELESS
            symbol = str(open_size) if is_named else ""
            if not symbol and isinstance(size, range) and len(size) > 1:
                if isinstance(open_size, int) and open_size >= 0:
                    raise self.error(
                        f"dimension {axis} of input {name} is {open_size} in the model, not "
                        f"{size_text(size)}: give {open_size}, or export the model anew"
                    )
                symbol = f"{name}.{axis}"
            if symbol:
                self._size(symbol, size)
            result.append(symbol or (size[0] if isinstance(size, range) else size))
        self.stated[name] = tuple(result)

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs whose dimensions are known, at sizes of the symbols."""
        at: dict[str, int] = dict(sizes)
        at |= {name: size for name, size in self.sizes.items() if isinstance(size, int)}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, declared in self.model.inputs.items():
            shape = self.stated.get(name, declared)
            if shape is None or not any(isinstance(size, str) for size in shape):
                if name in self.stated:
                    shapes[name] = tuple(int(size) for size in shape or ())
                continue
            numbers = [at.get(size) if isinstance(size, str) else size for size in shape]
            if all(size is not None and size >= 0 for size in numbers):
                shapes[name] = tuple(size for size in numbers if size is not None)
                continue
            # Of a shape that is stated in part, a front end names the axes that are missing.
            for axis, size in enumerate(numbers):
                if isinstance(shape[axis], str) and size is not None:
                    shapes[f"{name}:{axis}"] = (size,)
        return shapes


def size_text(size: Size) -> str:
    """Return a size in words.

    >>> size_text(3), size_text(range(1, 17))
    ('3', '1..16')
    """
    return str(size) if isinstance(size, int) else f"{size.start}..{size.stop - 1}"

"""Types of a model's inputs, from its declarations and the caller's sizes of open dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cpembed.errors import ModelError
from cpembed.frontends.binding import bound_array
from cpembed.frontends.narrow import IN_BYTES
from cpembed.frontends.onnx.model import Model, ModelInput
from cpembed.graph.kinds import TensorType
from cpembed.graph.kinds.base import Array


def input_types(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
    """Return the types of all inputs; an open size has one value wherever its name stands."""
    inputs = {value.name: value for value in model.body.inputs}
    for name in shapes:
        if name not in inputs:
            names = ", ".join(inputs) or "none"
            raise ModelError(f"{model.name} has no input {name}: its inputs are {names}")
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        _check_shape(model.name, inputs[name], shape)
        for size, value in zip(inputs[name].sizes or (), shape, strict=False):
            if isinstance(size, str) and size and sizes.setdefault(size, int(value)) != value:
                raise ModelError(
                    f"{model.name}: the size {size} is given as {sizes[size]} and as {value}: give "
                    "one"
                )
    return {
        name: TensorType(
            _input_shape(model.name, declared, shapes.get(name), sizes),
            IN_BYTES.get(declared.dtype, declared.dtype),
        )
        for name, declared in inputs.items()
    }


def bound_arrays(model: Model, constants: Mapping[str, Any]) -> dict[str, Array]:
    """Return the values of inputs in their element types; shapes are still to be compared."""
    inputs = {value.name: value for value in model.body.inputs}
    for name in constants:
        if name not in inputs:
            names = ", ".join(inputs) or "none"
            raise ModelError(f"{model.name} has no input {name}: its inputs are {names}")
    return {
        name: bound_array(
            value,
            IN_BYTES.get(inputs[name].dtype, inputs[name].dtype),
            f"{model.name}: input {name}",
        )
        for name, value in constants.items()
    }


def with_axis_sizes(
    model: Model, shapes: Mapping[str, Sequence[int]]
) -> tuple[Model, dict[str, Sequence[int]]]:
    """Return a model with the sizes of single axes, ``NAME:axis``, and the other shapes.

    A size that the model names has its value wherever the name stands.
    """
    inputs = {value.name: value for value in model.body.inputs}
    rest: dict[str, Sequence[int]] = {}
    named: dict[str, int] = {}
    for key, shape in shapes.items():
        name, colon, text = key.rpartition(":")
        # An input may have a name that ends in a number itself.
        if key in inputs or not colon or not text.isdecimal() or name not in inputs:
            rest[key] = shape
            continue
        sizes, axis = list(inputs[name].sizes or ()), int(text)
        if axis >= len(sizes) or len(shape) != 1:
            has = "no declared shape" if inputs[name].sizes is None else f"{len(sizes)} dimensions"
            problem = f"one size of axis {axis} of input {name}, which has {has}"
            raise ModelError(
                f"{model.name}: {key}={','.join(map(str, shape))} is not {problem}: give "
                f"{name}:AXIS=SIZE or its shape {name}=SIZES"
            )
        old, new = sizes[axis], int(shape[0])
        sizes[axis] = new
        if isinstance(old, str) and old and named.setdefault(old, new) != new:
            raise ModelError(
                f"{model.name}: the size {old} is given as {named[old]} and as {new}: give one"
            )
        _check_shape(model.name, inputs[name], sizes)
        inputs[name] = replace(inputs[name], sizes=tuple(sizes))
    bound = tuple(
        value
        if value.sizes is None
        else replace(value, sizes=tuple(_value_of(size, named) for size in value.sizes))
        for value in inputs.values()
    )
    return replace(model, body=replace(model.body, inputs=bound)), rest


def _value_of(size: int | str, named: Mapping[str, int]) -> int | str:
    return named.get(size, size) if isinstance(size, str) else size


def _check_shape(model: str, declared: ModelInput, shape: Sequence[int | str]) -> None:
    text = ",".join(map(str, shape))
    if any(not isinstance(size, str) and size < 0 for size in shape):
        raise ModelError(
            f"{model}: the shape {text} of input {declared.name}: sizes are at least 0"
        )
    if declared.sizes is None:
        return
    if len(declared.sizes) != len(shape):
        raise ModelError(
            f"{model}: input {declared.name} has {len(declared.sizes)} dimensions, the shape "
            f"{text} has {len(shape)}"
        )
    for k, (size, value) in enumerate(zip(declared.sizes, shape, strict=True)):
        if not _is_open(size) and not _is_open(value) and size != value:
            raise ModelError(
                f"{model}: dimension {k} of input {declared.name} is {size} in the model, not "
                f"{value}: give {size}, or export the model anew"
            )


def _is_open(size: int | str) -> bool:
    return isinstance(size, str) or size < 0


def _input_shape(
    model: str, declared: ModelInput, shape: Sequence[int] | None, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    if shape is not None:
        return tuple(int(size) for size in shape)
    name = declared.name
    if declared.sizes is None:
        raise ModelError(
            f"{model}: input {name} has no shape: give it with shapes= or --shape "
            f"{name}=1,3,224,224"
        )
    resolved: list[int] = []
    for k, size in enumerate(declared.sizes):
        value = sizes.get(size, -1) if isinstance(size, str) else size
        if value < 0:
            label = f" ({size})" if isinstance(size, str) and size else ""
            example = ",".join(str(1 if _is_open(size) else size) for size in declared.sizes)
            raise ModelError(
                f"{model}: dimension {k}{label} of input {name} is left open: networks here "
                f"have fixed shapes; give them with shapes= or --shape {name}={example}, or this "
                f"size alone with --shape {name}:{k}=1"
            )
        resolved.append(value)
    return tuple(resolved)

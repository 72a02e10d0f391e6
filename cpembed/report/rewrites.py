"""Rewrites in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cpembed.transform.replay import Step
from cpembed.transform.rewrites import Split


def step_words(step: Step) -> str:
    """What a rewrite does: a phrase where its kind is known, else its parameters."""
    if isinstance(step.rewrite, Split):
        # Named by the layouts: the dimension that goes and the two that come.
        dimension = step.before.names[step.rewrite.dimension]
        return f"split {dimension} into {step.rewrite.outer}, {step.rewrite.inner}"
    parameters = step.rewrite.describe()
    phrase = _PHRASES.get(step.rewrite.name)
    if phrase is None:
        details = " ".join(f"{key}={value}" for key, value in parameters.items())
        return f"{step.rewrite.name} {details}"
    return f"{step.rewrite.name} {phrase(parameters)}"


def _pad(parameters: Mapping[str, Any]) -> str:
    sides = [f"{parameters[side]} {side}" for side in ("before", "after") if parameters[side]]
    return f"{parameters['axes'][0]} by {' and '.join(sides)}"


def _unroll(parameters: Mapping[str, Any]) -> str:
    parts = (
        f"{name} by {part['step']}" if part["step"] > 1 else name
        for name, part in parameters["parts"].items()
    )
    return f"{parameters['axes'][0]} into {', '.join(parts)}"


_PHRASES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "pad": _pad,
    "reorder": lambda given: "dimensions",
    "fuse": lambda given: f"{', '.join(given['axes'])} to {given['to']}",
    "flatten": lambda given: f"{', '.join(given['axes'])} to {given['to']}",
    "stencil_unroll": _unroll,
    "image_pack": _unroll,
}

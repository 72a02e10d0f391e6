"""A model cut to some of its tensors: operators that none of them needs are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cpembed.errors import ModelError
from cpembed.frontends.builder import no_tensor
from cpembed.frontends.onnx.model import Body, Model, Node


def cut(model: Model, outputs: Sequence[str]) -> Model:
    """Return the part of a model that computes some tensors, which become its outputs.

    Inputs that nothing reads any more are left out.

    Parameters
    ----------
    model : Model
    outputs : sequence of str
        Names of tensors: the model's outputs or any others. None leaves the model as it is.

    Raises
    ------
    ModelError
        For a name that no tensor has.
    """
    if not outputs:
        return model
    body = model.body
    inputs = [value.name for value in body.inputs]
    written = [name for node in body.nodes for name in node.outputs if name]
    names = {*inputs, *body.constants, *written}
    for name in outputs:
        if name not in names:
            raise ModelError(no_tensor(model.name, name, written))
    needed, nodes = {*outputs}, list[Node]()
    for node in reversed(body.nodes):
        if needed.intersection(node.outputs):
            needed.update(tensors_read(node))
            nodes.append(node)
    rest = replace(
        body,
        inputs=tuple(value for value in body.inputs if value.name in needed),
        outputs=tuple(dict.fromkeys(outputs)),
        nodes=tuple(reversed(nodes)),
    )
    return replace(model, body=rest)


def tensors_read(node: Node) -> Iterator[str]:
    """Yield the tensors that a node reads, in its branches too."""
    yield from filter(None, node.inputs)
    for value in node.attributes.values():
        if isinstance(value, Body):
            yield from _outer(value)


def _outer(body: Body) -> Iterator[str]:
    """Yield the tensors outside a branch that it reads."""
    inner = {*body.constants, *(value.name for value in body.inputs)}
    inner |= {name for node in body.nodes for name in node.outputs}
    for node in body.nodes:
        yield from (name for name in tensors_read(node) if name not in inner)
    yield from (name for name in body.outputs if name not in inner)

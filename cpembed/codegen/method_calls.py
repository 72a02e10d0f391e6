"""Calls of a convolution by a method on tensors where they lie, recorded for a program.

Weights are transformed and packed now: in the program they are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.epilogue import RESIDUAL
from cpembed.codegen.method_layouts import ImageTiles, TensorMemory
from cpembed.codegen.methods import OutputMemory, TileBlocks, image_transform, output_transform
from cpembed.codegen.recorded import Memory, RecordedCalls, Recorder
from cpembed.errors import InvariantError
from cpembed.transform.methods.convolution import M, U, V
from cpembed.transform.methods.winograd import Winograd
from cpembed.transform.program import pack

Array = NDArray[Any]


@dataclass(frozen=True)
class MethodTensors:
    """Image and output of a convolution in memory, and the value of its padding."""

    image: TensorMemory
    output: OutputMemory
    padding: int = 0


def recorded_winograd(
    method: Winograd,
    blocks: TileBlocks,
    product: CompiledKernel,
    tensors: MethodTensors,
    constants: Mapping[str, Array],
) -> RecordedCalls:
    """Record the calls of Winograd's method on an image and an output where they lie.

    Parameters
    ----------
    method : Winograd
        Method.
    blocks : TileBlocks
        Blocks of its tiles.
    product : CompiledKernel
        Kernel of a block's product, made for a recorder, which reads V and writes M in place.
    tensors : MethodTensors
        Image and output in memory.
    constants : mapping of str to array
        Weights under the operand's name, and the epilogue's vectors.

    Returns
    -------
    RecordedCalls
        Calls of a run; nothing is left to prepare.

    Raises
    ------
    InvariantError
        If the kernel was made for another processor, or packs V or M.
    """
    recorder, conv = product.processor, method.convolution
    if not isinstance(recorder, Recorder):
        raise InvariantError("this kernel is compiled: the calls of a planned one are recorded")
    if not all(product.is_packed_in_place(name) for name in (V, M)):
        raise InvariantError(f"the product of {method.name} packs what the transforms leave")
    recorder.calls.clear()
    output, epilogue = tensors.output, tensors.output.epilogue
    image = recorder.empty(tensors.image.elements, conv.image.dtype)
    stored = conv.output.dtype if epilogue is None else epilogue.dtype
    result = recorder.empty(output.memory.elements, stored)
    caller_memory: dict[str, Memory] = {conv.image.name: image, conv.output.name: result}
    further: list[Memory] = []
    if epilogue is not None:
        further = [recorder.from_array(constants[name].reshape(-1)) for name in epilogue.vectors]
    if output.residual is not None and epilogue is not None and epilogue.residual is not None:
        caller_memory[RESIDUAL] = recorder.empty(output.residual.elements, epilogue.residual.dtype)
        further.append(caller_memory[RESIDUAL])
    weights = constants[conv.weights.name].reshape(conv.weights.shape)
    u = _transformed(method, product, weights)
    v, m = product.empty(V), product.empty(M)
    tiles = ImageTiles.in_place(method, tensors.image, tensors.padding)
    before = recorder.compile_plan(image_transform(method, blocks, tiles))
    after = recorder.compile_plan(output_transform(method, blocks, output))
    # The same kernels serve every block; which one it is they read from memory.
    for number in range(blocks.count):
        block = recorder.from_array(np.array([number], np.int32))
        before(image, block, v)
        product.bound({U: u, V: v}, m)
        after(m, block, *further, result)
    return RecordedCalls((), recorder.drain(), caller_memory, {})


def _transformed(method: Winograd, product: CompiledKernel, weights: Array) -> Memory:
    """Return the weights transformed, in the layout of the product's kernel."""
    # Floats in double precision, so that weights are rounded only once.
    transformed = method.weights_part(weights if method.is_exact else weights.astype(np.float64))
    if not product.is_packed_in_place(U):
        transformed = pack(product.operand(U), transformed)
    return product.processor.from_array(transformed)

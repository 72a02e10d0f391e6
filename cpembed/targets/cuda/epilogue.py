"""Epilogues of Tensor Core kernels as TensorIR: what a thread does with the sums that it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpembed.codegen.epilogue import RESIDUAL, SECOND, Epilogue, Residual
from cpembed.codegen.epilogue_text import float_text, result_text
from cpembed.codegen.plan import buffer, read, storage_dtype
from cpembed.targets.cuda.expressions import ExpressionWriter
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.writer import Writer, store_vector

RESIDUAL_PARAMETER, SECOND_PARAMETER = "Residual", "Second"
"""Names of the residual and of the second output in a kernel; the result is ``C``."""


def vector_parameter(name: str) -> str:
    """Return the name in a kernel of an epilogue's vector.

    >>> vector_parameter("@bias"), vector_parameter("@vector1")
    ('Bias', 'Vector1')
    """
    return name.removeprefix("@").capitalize()


def input_parameters(product: TiledProduct) -> dict[str, str]:
    """Return the kernel's parameters that the epilogue reads, by their names among the inputs."""
    epilogue = product.epilogue
    if epilogue is None:
        return {}
    parameters = {name: vector_parameter(name) for name in epilogue.vectors}
    if epilogue.residual is not None:
        parameters[RESIDUAL] = RESIDUAL_PARAMETER
    return parameters


def output_parameters(product: TiledProduct) -> dict[str, tuple[str, str]]:
    """Return the kernel's outputs by name: parameter, and element type."""
    outputs = {product.program.unfused.output.name: ("C", product.output_dtype)}
    if product.epilogue is not None and product.epilogue.second is not None:
        outputs[SECOND] = (SECOND_PARAMETER, product.epilogue.second.dtype)
    return outputs


def output_elements(product: TiledProduct) -> dict[str, int]:
    """Return the number of elements of each buffer that the epilogue writes."""
    return {name: product.output.elements for name, _ in output_parameters(product).values()}


def input_declarations(product: TiledProduct) -> list[str]:
    """Return declarations of the buffers that the epilogue reads."""
    epilogue = product.epilogue
    if epilogue is None:
        return []
    declared = [
        buffer(vector_parameter(name), product.channel_count, dtype)
        for name in epilogue.vectors
        for dtype in (epilogue.vector_dtype(name, product.sums),)
    ]
    if epilogue.residual is not None:
        elements = product.output.elements
        declared.append(buffer(RESIDUAL_PARAMETER, elements, epilogue.residual.dtype))
    return declared


def output_declarations(product: TiledProduct) -> list[str]:
    """Return declarations of the buffers that the epilogue writes, the result last."""
    elements, outputs = product.output.elements, list(output_parameters(product).values())
    return [buffer(name, elements, dtype) for name, dtype in reversed(outputs)]


@dataclass(frozen=True, kw_only=True)
class ResultVector:
    """Sums that a thread holds, and how their channels and residuals are found."""

    sums: str
    """Array of the sums."""
    length: int
    first: str = "0"
    """Expression of the place of the first sum in the array."""
    channel: Callable[[int], str]
    """Expression of a sum's channel by its number in the vector."""
    residual: Callable[[int], str]
    """Expression of the place of a sum's residual by its number in the vector."""


def store_results(writer: Writer, product: TiledProduct, vector: ResultVector) -> None:
    """Write the epilogue of a vector and its stores.

    Parameters
    ----------
    writer
        Text of the kernel, with the variables ``place``, the number of the first element, and
        ``valid``, whether the vector is stored.
    product
        Product with its epilogue.
    vector
        The sums.
    """
    if product.epilogue is None:
        store_vector(writer, ("C", "place"), vector.sums, product.sums, vector.length)
        return
    parameters = output_parameters(product).values()
    for name, (parameter, dtype) in zip(
        write_results(writer, product, vector), parameters, strict=True
    ):
        store_vector(writer, (parameter, "place"), name, storage_dtype(dtype), vector.length)


def write_results(writer: Writer, product: TiledProduct, vector: ResultVector) -> tuple[str, ...]:
    """Write the epilogue of a vector; return the arrays of its results.

    Parameters
    ----------
    writer, product, vector
        Those of :func:`store_results`; there is an epilogue.
    """
    epilogue, length = product.epilogue, vector.length
    assert epilogue is not None
    dtypes = [dtype for _, dtype in output_parameters(product).values()]
    arrays = ("result", "second_result")[: len(dtypes)]
    for name, dtype in zip(arrays, dtypes, strict=True):
        writer.script.line(
            f'{name} = T.alloc_buffer(({length},), "{storage_dtype(dtype)}", scope="local")'
        )
    for number in range(length):
        _write_element(writer, product, epilogue, vector, number)
    return arrays


def _write_element(
    writer: Writer, product: TiledProduct, epilogue: Epilogue, vector: ResultVector, number: int
) -> None:
    """Write the results of one sum."""
    place = str(number) if vector.first == "0" else f"{vector.first} + {number}"
    value, sums, script = f"{vector.sums}[{place}]", product.sums, writer.script
    # Epilogues are computed in float32, as on other targets: float16 would round at each step.
    if sums == "float16":
        value, sums = f'T.cast({value}, "float32")', "float32"
    channel = vector.channel(number) if epilogue.vectors else ""
    addend = ""
    if epilogue.residual is not None:
        addend = f"{RESIDUAL_PARAMETER}[{vector.residual(number)}]"
    if epilogue.chain is None:
        result = result_text(epilogue, value, sums, channel, addend, relu=_relu)
        script.line(f"result[{number}] = {result}")
        if epilogue.second is None:
            return
    expressions = ExpressionWriter(script, f"value_{number}")
    inputs = [float_text(epilogue, value, sums, channel, relu=_relu)]
    if epilogue.residual is not None:
        inputs.append(_residual_text(epilogue.residual, addend))
    if epilogue.chain is not None:
        inputs += [f"{vector_parameter(name)}[{channel}]" for name in epilogue.chain.names]
    registers = {n: expressions.register(text, "float32") for n, text in enumerate(inputs)}
    if epilogue.chain is not None:
        stored = expressions.value(epilogue.chain.expression, registers)
        script.line(f"result[{number}] = {expressions.stored(stored, epilogue.dtype)}")
    if epilogue.second is not None:
        stored = expressions.value(epilogue.second.expression, registers)
        text = expressions.stored(stored, epilogue.second.dtype)
        script.line(f"second_result[{number}] = {text}")


def _residual_text(residual: Residual, element: str) -> str:
    return read(element, residual.dtype, "float32")


def _relu(value: str) -> str:
    # CUDA's maximum of a NaN and a number is the number, and a NaN stays one.
    return f"T.Select({value} <= T.float32(0), T.float32(0), {value})"

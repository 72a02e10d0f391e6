"""Results of a task through the chain of an epilogue: loops that the compiler vectorizes.

The sums leave their registers for a local buffer, which the nearest cache holds, so that functions
may use all registers. They are those of elementwise kernels
(:mod:`~cpembed.codegen.scalar_text`), equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpembed.codegen.epilogue import Chain, Epilogue
from cpembed.codegen.epilogue_text import float_text
from cpembed.codegen.instruction import element, vector_parameter
from cpembed.codegen.nest import Nest
from cpembed.codegen.scalar_text import ScalarWriter, Statements
from cpembed.codegen.values import Value, converted, load_as, one_function, one_name
from cpembed.transform.program import Loop


def write_chain(statements: Statements, nest: Nest, sums: str, loops: Sequence[Loop]) -> None:
    """Write the results of a task.

    Parameters
    ----------
    statements : Statements
        Text to write to.
    nest : Nest
        Nest whose epilogue has a chain.
    sums : str
        Element of the buffer of sums, over the variables of the loops.
    loops : sequence of Loop
        Loops over the results.
    """
    script, epilogue, output = statements.script, nest.epilogue, nest.operands[2]
    assert epilogue is not None
    assert epilogue.chain is not None
    name, text = one_function("float32")
    statements.include(name, text)
    script.line(f'{one_name("float32")}: T.let = T.call_extern("float32", "{name}")')
    # Contiguous results innermost, which become vectors.
    ordered = sorted(loops, key=lambda loop: -abs(output.stride(loop.name)))
    with script.nested(*(f"for {x.name} in T.serial({x.extent}):" for x in ordered)):
        values = _inputs(statements, nest, epilogue, epilogue.chain, sums)
        result = ScalarWriter(statements, "float32").value(epilogue.chain.expression, values)
        stored = converted(statements.bind, result, epilogue.dtype)
        script.line(f"{element(output)} = {stored}")


def _inputs(
    statements: Statements, nest: Nest, epilogue: Epilogue, chain: Chain, sums: str
) -> dict[int, Value]:
    """Write the inputs of a chain's expression and return them by number."""
    channel = "" if nest.channels is None else str(nest.channels.access)
    text = statements.bind(float_text(epilogue, sums, nest.sums, channel))
    is_product = epilogue.scale and not epilogue.relu
    values = [Value(text, "float32", is_product=is_product)]
    if nest.residual is not None:
        addend = load_as(element(nest.residual), nest.residual.dtype, "float32")
        values.append(Value(statements.bind(addend), "float32"))
    vectors = (f"{vector_parameter(name)}[{channel}]" for name in chain.names)
    values += [Value(vector, "float32") for vector in vectors]
    return dict(enumerate(values))

"""Bytes of a product's first factor that are extended to 16 bits in memory before its kernel.

Instructions that multiply 16 bits take bytes too, which each block of results then extends anew.
Extending a factor once takes less time where many results are computed from each element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpembed.codegen.epilogue import BYTES
from cpembed.codegen.recorded import Memory, RecordedCall, RecordedCalls, Recorder
from cpembed.graph.graph import Array
from cpembed.graph.kinds import Elementwise, Input, TensorType
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.computation import Computation
from cpembed.network.operator_costs import estimate_operator_us
from cpembed.network.operators import PlacedTensor, generated_plan
from cpembed.targets.registry import open_target

WORD = "int16"
"""Type to which bytes are extended."""

_EXTENSION = Elementwise(Input(0), WORD)


def with_words(workload: Computation) -> Computation | None:
    """Return a product whose first factor has 16 bits; None if it has no bytes."""
    first = workload.inputs[0]
    return workload.with_dtypes({first.name: WORD}) if first.dtype in BYTES else None


def extension_us(spec: HardwareSpec, workload: Computation, threads: int) -> float:
    """Estimate the time of extending the first factor.

    Parameters
    ----------
    spec : HardwareSpec
        Target whose calibration is used.
    workload : Computation
        Product with a first factor of bytes.
    threads : int

    Returns
    -------
    float
        Microseconds.
    """
    first = workload.inputs[0]
    before, after = (
        PlacedTensor.plain(TensorType(first.shape, dtype)) for dtype in (first.dtype, WORD)
    )
    return estimate_operator_us(open_target(spec), _EXTENSION, [before], [after], threads)


def words_of(constants: Mapping[str, Array], name: str) -> Mapping[str, Array]:
    """Return constants of which one of some name is extended."""
    return {**constants, name: constants[name].astype(WORD)} if name in constants else constants


def with_extension(
    calls: RecordedCalls, name: str, dtype: str, recorder: Recorder
) -> RecordedCalls:
    """Return the calls of a kernel, with one before them that extends an operand.

    Parameters
    ----------
    calls : RecordedCalls
    name : str
        Name of the operand, which is not constant.
    dtype : str
        Type of its bytes.
    recorder : Recorder
    """
    words = calls.caller_memory[name]
    in_bytes = Memory(words.elements, dtype)
    before, after = (
        PlacedTensor.plain(TensorType((words.elements,), each)) for each in (dtype, WORD)
    )
    plan = generated_plan(_EXTENSION, [before], [after], recorder.thread_count())
    return replace(
        calls,
        run=(RecordedCall(plan, (in_bytes, words)), *calls.run),
        caller_memory={**calls.caller_memory, name: in_bytes},
    )

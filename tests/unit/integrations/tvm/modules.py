"""Small relax modules, and what the CPU makes of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax

from cpembed.hw.loader import load_hardware_spec
from cpembed.targets.registry import missing_for

Array = NDArray[Any]


def module_of(build: Callable[..., Any], **inputs: tuple[tuple[Any, ...], str]) -> tvm.IRModule:
    """``main`` of inputs by name, with shape and dtype; ``build`` takes and returns expressions."""
    builder = relax.BlockBuilder()
    add_function(builder, "main", build, **inputs)
    return builder.get()


def add_function(
    builder: relax.BlockBuilder,
    name: str,
    build: Callable[..., Any],
    **inputs: tuple[tuple[Any, ...], str],
) -> None:
    variables = [relax.Var(name, relax.TensorType(*given)) for name, given in inputs.items()]
    with builder.function(name, variables):
        with builder.dataflow():
            result = builder.emit_output(build(*variables))
        builder.emit_func_output(result)


def random(seed: int, shape: tuple[int, ...], dtype: str = "int8", bound: int = 128) -> Array:
    low = 0 if dtype == "uint8" else -bound
    high = 256 if dtype == "uint8" else bound
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def run(module: tvm.IRModule, *arrays: Array) -> Array:
    return machine(module)["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def called(compiled: Any, *arrays: Array) -> Array:
    """What ``main`` of a compiled module gives."""
    return relax.VirtualMachine(compiled, tvm.cpu())["main"](
        *map(tvm.runtime.tensor, arrays)
    ).numpy()


def machine(module: tvm.IRModule) -> relax.VirtualMachine:
    return relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())


def processor() -> str:
    """A target of this processor that multiplies uint8 by int8."""
    for name in ("avx512_vnni", "avx_vnni", "avx2_maddubs", "avx2_int8"):
        if not missing_for(load_hardware_spec(name)):
            return name
    pytest.skip("needs a CPU feature: avx512_vnni, avx_vnni or avx2")

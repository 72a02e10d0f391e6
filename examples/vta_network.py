"""A small quantized network on a VTA and on the CPU: the same result, bit for bit.

    .venv/bin/python examples/vta_network.py

Its convolutions and its matrix product run as VTA programs on the simulator; pooling, and
requantization by anything but a shift, run on the CPU.
"""

from __future__ import annotations

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax import op

import cpembed.integrations.tvm

IMAGE = (1, 3, 32, 32)
SEED = 0


def network(seed: int = SEED) -> tvm.IRModule:
    """Weights and biases are random; each layer's shift keeps its sums within int8, mostly."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> relax.Expr:
        return relax.const(random.integers(-128, 128, shape, dtype=np.int8))

    def bias(*shape: int) -> relax.Expr:
        return relax.const(random.integers(-(2**12), 2**12, shape, dtype=np.int32))

    image = relax.Var("image", relax.TensorType(IMAGE, "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [image]):
        with builder.dataflow():
            # 3 channels, bias, rounding shift and relu: all of it becomes one VTA program.
            sums = op.nn.conv2d(image, weights(32, 3, 3, 3), padding=1, out_dtype="int32")
            sums = op.add(op.add(sums, bias(1, 32, 1, 1)), relax.const(1 << 9, "int32"))
            shifted = op.right_shift(sums, relax.const(10, "int32"))
            first = builder.emit(op.astype(op.clip(shifted, 0, 127), "int8"))
            pooled = builder.emit(op.nn.max_pool2d(first, (2, 2), strides=(2, 2)))
            # Strided and in two groups; requantized on the CPU, by a float scale.
            sums = op.nn.conv2d(
                pooled, weights(48, 16, 3, 3), strides=2, padding=1, groups=2, out_dtype="int32"
            )
            sums = builder.emit(op.nn.relu(op.add(sums, bias(1, 48, 1, 1))))
            scaled = op.multiply(op.astype(sums, "float32"), relax.const(0.00071, "float32"))
            second = builder.emit(op.astype(op.clip(op.round(scaled), -128, 127), "int8"))
            # The classifier: all 32 bits are its result.
            features = builder.emit(op.reshape(second, (1, 48 * 8 * 8)))
            scores = op.matmul(features, weights(48 * 8 * 8, 10), out_dtype="int32")
            result = builder.emit_output(op.add(scores, bias(10)))
        builder.emit_func_output(result)
    return builder.get()


def run(module: tvm.IRModule, image: NDArray[np.int8]) -> NDArray[np.int32]:
    """The scores that a module, compiled for this CPU, gives an image."""
    executable = tvm.compile(module, "llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(image)).numpy()


def main() -> None:
    """Run a network with its products on a VTA, and compare it with the CPU's result."""
    module = network()
    offload = cpembed.integrations.tvm.offload("vta_1x16x16")
    on_vta = offload(module)
    print(offload.report)
    image = np.random.default_rng(SEED + 1).integers(-128, 128, IMAGE, dtype=np.int8)
    expected, result = run(module, image), run(on_vta, image)
    print(f"scores on the CPU {expected[0].tolist()}")
    print(f"scores on VTA     {result[0].tolist()}")
    if not np.array_equal(expected, result):
        raise SystemExit("they differ")


if __name__ == "__main__":
    main()

"""QuantizeLinear with scales next to 0, denormal and huge, beside ONNX's reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator

from cpembed.codegen.runtime import compile_plan, from_array
from cpembed.frontends import load_model
from cpembed.graph.graph import evaluate
from cpembed.graph.passes import prepare
from cpembed.network.operators import generated_plan
from tests.unit.frontends.onnx.referee import single
from tests.unit.network.operators.running import placed

SCALES = (1e-45, -1e-40, 1e-40, 1.1754944e-38, 1e-30, 0.05, 1.0, -2.0, 1e30, 3.4e38)
ENDS = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, np.inf, -np.inf, 0.5, -2.5, 1.0, -1.0)


@pytest.mark.quick(8)
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("scale", SCALES)
@np.errstate(all="ignore")
def test_quotients_saturate(scale: float, dtype: str, is_constant: bool, tmp_path: Path) -> None:
    """In the interpreter, after the passes, and compiled. Of quotients beyond 32 bits, which the
    reference converts to whatever the processor makes of them, the last integers are stored."""
    random, limits = np.random.default_rng(7), np.iinfo(dtype)
    divisor = np.float32(scale)
    quanta = random.uniform(2 * limits.min - 9, 2 * limits.max, 60).astype(np.float32)
    x = np.concatenate([np.asarray(ENDS, np.float32), quanta * divisor])
    zero = np.asarray(random.integers(limits.min, limits.max, endpoint=True), dtype)
    model = single("QuantizeLinear", [x, np.asarray(divisor), zero], [1, 2] if is_constant else [])
    names = [given.name for given in model.graph.input]
    inputs = dict(zip(names, (x, np.asarray(divisor), zero), strict=False))
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    quotient = x / divisor
    wanted = np.where(quotient >= 2**31, limits.max, wanted)
    wanted = np.where(quotient < -(2**31), limits.min, wanted).astype(dtype)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load_model(path)
    for form in (graph, prepare(graph)):
        found = evaluate(form, inputs)[form.outputs[0]]
        np.testing.assert_array_equal(found, wanted)
    (operator,) = prepare(graph).operators
    given = [inputs[name] for name in operator.inputs]
    tensors = [placed(array) for array in given]
    plan = generated_plan(operator.kind, tensors, [placed(wanted)], 1)
    result = from_array(np.zeros_like(wanted))
    compile_plan(plan)(*map(from_array, given), result)
    np.testing.assert_array_equal(result.numpy(), wanted)

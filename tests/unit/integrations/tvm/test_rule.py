"""The rule of dlight and MetaSchedule's space and database; TVM's own code is the second source."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.s_tir import dlight, meta_schedule
from tvm.s_tir.meta_schedule.database import TuningRecord

from cpembed.hw.loader import load_hardware_spec
from cpembed.integrations import tvm as plugin
from cpembed.integrations.tvm.scheduling import ANNOTATION, recorded
from cpembed.targets.cuda.build import cuda_target
from cpembed.targets.cuda.relax import Emulation
from cpembed.targets.registry import missing_for
from tests.unit.integrations.tvm.modules import called, module_of, processor, random, run

IMAGE = (1, 8, 6, 6)
VALUES = random(5, IMAGE, "uint8")


def network() -> tvm.IRModule:
    """A convolution in groups with what follows, pooling, and a product."""

    def build(image):
        emit = relax.BlockBuilder.current().emit
        weight, bias = random(1, (24, 4, 3, 3)), random(2, (1, 24, 1, 1), "int32", 2**10)
        given = {"groups": 2, "padding": 1, "out_dtype": "int32"}
        sums = op.add(op.nn.conv2d(image, relax.const(weight), **given), relax.const(bias))
        scaled = op.multiply(op.astype(sums, "float32"), relax.const(0.004, "float32"))
        first = emit(op.astype(op.clip(op.round(scaled), 0, 255), "uint8"))
        pooled = emit(op.nn.max_pool2d(first, (6, 6)))
        flat = emit(op.reshape(pooled, (1, 24)))
        return op.matmul(flat, relax.const(random(3, (24, 10))), out_dtype="int32")

    return module_of(build, image=(IMAGE, "uint8"))


def fused(module: tvm.IRModule) -> tvm.IRModule:
    return relax.get_pipeline("zero")(module)


def functions(module: tvm.IRModule) -> dict[str, tvm.tirx.PrimFunc]:
    return {
        variable.name_hint: function
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


@pytest.mark.slow
def test_products_are_scheduled_by_the_rule_and_the_rest_by_those_that_follow():
    rule, target = (
        plugin.dlight_rule(processor()),
        plugin.llvm_target(),
    )
    with target:
        rules = (rule, dlight.cpu.GEMV(), dlight.cpu.Reduction())
        scheduled = dlight.ApplyDefaultSchedule(*rules)(fused(network()))
    assert np.array_equal(called(tvm.compile(scheduled, target), VALUES), run(network(), VALUES))
    assert len(rule.report.kernels) == 2
    assert all(entry.reason for entry in rule.report.rest)
    before = functions(fused(network()))
    for name, function in functions(scheduled).items():
        given = [(tuple(map(int, p.shape)), str(p.dtype)) for p in function.params]
        assert given == [(tuple(map(int, p.shape)), str(p.dtype)) for p in before[name].params]


@pytest.mark.slow
def test_a_module_that_is_compiled_for_less_than_this_processor_is_left_alone():
    rule = plugin.dlight_rule(processor())
    module = fused(network())
    with tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"}):
        scheduled = dlight.ApplyDefaultSchedule(rule)(module)
    assert not rule.report.kernels
    assert any("llvm_target()" in str(entry.reason) for entry in rule.report.rest)
    assert np.array_equal(called(tvm.compile(scheduled, "llvm"), VALUES), run(network(), VALUES))


@pytest.mark.parametrize("function", ["relu", "silu"])
def test_a_function_of_a_gpu_is_the_kernel_that_the_emulator_runs(function: str):
    if missing := missing_for(load_hardware_spec("mma_f16")):
        pytest.skip(missing[0])
    weight = relax.const(random(1, (16, 8, 3, 3), "float16", 3))
    bias = relax.const(random(2, (1, 16, 1, 1), "float32", 3))

    def build(image):
        sums = op.nn.conv2d(image, weight, padding=1, out_dtype="float32")
        return op.astype(getattr(op.nn, function)(op.add(sums, bias)), "float16")

    module = module_of(build, image=(IMAGE, "float16"))
    rule, target = plugin.dlight_rule("mma_f16"), cuda_target("sm_80")
    with target:
        rules = (rule, dlight.gpu.Matmul(), dlight.gpu.Fallback())
        scheduled = dlight.ApplyDefaultSchedule(*rules)(fused(module))
    emulation = Emulation(scheduled, {}, target)
    image = random(3, IMAGE, "float16", 3)
    result, expected = emulation.run(image), run(module, image)
    # Activations are those of CUDA's library, the last place of float16 may be another.
    np.testing.assert_allclose(result, expected, rtol=0 if function == "relu" else 2e-3, atol=0)
    assert len(rule.report.kernels) == 1
    assert sum(sum(counted.mma.values()) for counted in emulation.kernel_counters.values())


@pytest.mark.slow
def test_functions_that_a_database_names_are_put_in_place():
    target = plugin.llvm_target()
    with target, plugin.schedule_database(processor()):
        named = relax.transform.MetaScheduleApplyDatabase()(fused(network()))
    placed = plugin.place_kernels(processor())(named)
    kernels = [f for f in functions(placed).values() if f.attrs.get("tirx.is_scheduled")]
    assert len(kernels) == 2
    assert np.array_equal(called(tvm.compile(placed, target), VALUES), run(network(), VALUES))


def product() -> tvm.IRModule:
    module = fused(network())
    (name,) = (name for name in functions(module) if "matmul" in name)
    return tvm.IRModule({"main": module[name].with_attr("global_symbol", "main")})


def designs(module: tvm.IRModule, target: tvm.target.Target, limit: int = 4):
    with target:
        return plugin.schedule_space(processor(), limit=limit).generate_design_space(module)


@pytest.mark.slow
def test_a_context_of_tuning_has_the_designs():
    module, target = product(), plugin.llvm_target()
    space = plugin.schedule_space(processor(), limit=3)
    context = meta_schedule.TuneContext(
        mod=module, target=target, space_generator=space, search_strategy="replay-func",
        num_threads=1,
    )  # fmt: skip
    traces = [str(design.trace) for design in context.generate_design_space()]
    assert traces == [str(design.trace) for design in designs(module, target, 3)]


def test_every_design_of_a_space_is_another_kernel_of_the_same_function():
    module, target = product(), plugin.llvm_target()
    found = designs(module, target)
    assert len({str(design.trace) for design in found}) == len(found) > 1
    row, weight = random(6, (1, 24), "uint8"), random(7, (24, 10))
    for design in found:
        executable = tvm.compile(design.mod, target)
        result = tvm.runtime.tensor(np.zeros((1, 10), np.int32))
        executable["main"](tvm.runtime.tensor(row), tvm.runtime.tensor(weight), result)
        assert np.array_equal(result.numpy(), row.astype(np.int32) @ weight.astype(np.int32))


def test_the_fastest_record_is_the_one_that_is_applied():
    module, target = product(), plugin.llvm_target()
    found = designs(module, target)
    database = plugin.schedule_database(processor())
    workload = database.commit_workload(module)
    for design, seconds in zip(found, (3.0, 1.0, 0.5, 2.0), strict=False):
        record = TuningRecord(design.trace, workload, [seconds], target)
        database.commit_tuning_record(record)
    fastest = found[min(2, len(found) - 1)]
    record = database.query_tuning_record(module, target, "main")
    assert ANNOTATION in str(record.trace)
    expected = TuningRecord(fastest.trace, workload, [1.0], target)
    assert recorded(record) == recorded(expected)
    assert len(database.get_all_tuning_records()) == len(found)


def test_what_does_not_embed_has_no_design_and_no_record():
    module = fused(module_of(op.exp, x=((4, 4), "float32")))
    (function,) = functions(module).values()
    alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    target = plugin.llvm_target()
    assert not designs(alone, target)
    assert plugin.schedule_database(processor()).query_schedule(alone, target, "main") is None

"""Split-K: the same results; chosen where tasks are few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.packing import packed_before
from cpembed.codegen.passes import loop_to_split
from cpembed.cost.ranking import RankedCandidate
from cpembed.driver.named import hardware_spec, workload
from cpembed.driver.solve import solve
from cpembed.errors import LoweringError
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.targets.cpu.variants import with_variants
from tests.features import needs

SPECS = {
    name: hardware_spec(name)
    for name in ("avx512_vnni", "amx_int8", "amx_bf16", "avx512_int8", "avx512_bf16")
}
TARGETS = [pytest.param(name, marks=needs(spec)) for name, spec in SPECS.items()]
LAYERS = {
    "avx512_vnni": ("gemm m=1 n=16 k=768", "conv2d n=1 c=24 h=3 w=3 k=16 r=3 s=3 layout=NHWC"),
    "amx_int8": ("gemm m=5 n=16 k=768", "conv2d n=1 c=72 h=4 w=4 k=16 r=3 s=3 pad=1"),
    "amx_bf16": ("gemm m=16 n=16 k=768",),
    "avx512_bf16": ("gemm m=1 n=16 k=768",),
    "avx512_int8": ("depthwise n=1 c=16 h=9 w=9 r=6 s=9 layout=NHWC",),
}


def candidates(layer: str, target: str) -> list[RankedCandidate]:
    spec = SPECS[target]
    given = workload(layer.split(), target=spec)
    return list(
        with_variants(solve(given, spec, constraints="in_place_padded", top=2).embeddings, spec)
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_sums_are_added_up(
    target: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    spec = SPECS[target]
    built = 0
    for layer in LAYERS[target]:
        given = workload(layer.split(), target=spec)
        inputs = random_inputs(given, 3)
        sums, ahead = reference(given, inputs), packed_before(given)
        for ranked in candidates(layer, target):
            program = ranked.candidate.program
            for epilogue in (None, Epilogue("float32", relu=True)):
                space = schedule_space(program, spec, epilogue=epilogue)
                knobs = replace(space.best(), split_k=parts)
                if loop_to_split(space.nest, parts) is None:
                    with pytest.raises(LoweringError, match=f"multiple of {parts} steps"):
                        space.scheduled(program, knobs)
                    continue
                kernel = build(program, spec, backend="native", knobs=knobs, epilogue=epilogue)
                built += 1
                expected = sums if epilogue is None else sums.astype("float32").clip(0)
                for found in (kernel.run(inputs), kernel.run_whole(inputs, ahead)):
                    assert found.dtype == expected.dtype
                    assert abs(found - expected).max() <= 1e-4 * abs(sums).max() * (
                        target.endswith("bf16")
                    )
    assert built


@pytest.mark.parametrize("threads, parts", [("1", 1), ("4", 4), ("5", 4)])
def test_threads_without_a_task_share_sums(
    threads: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tile of results, sixteen thousand products deep; five is no divisor of that."""
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    (ranked, *_) = candidates("gemm m=16 n=16 k=1048576", "amx_int8")
    program = ranked.candidate.program
    space = schedule_space(program, SPECS["amx_int8"])
    assert space.best().split_k == parts
    with_bias = schedule_space(program, SPECS["amx_int8"], epilogue=Epilogue("int32", bias=True))
    assert with_bias.best().split_k == 1
    with pytest.raises(LoweringError, match="bias"):
        with_bias.scheduled(program, replace(with_bias.best(), split_k=2))


def test_enough_tasks_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "4")
    (ranked, *_) = candidates("gemm m=64 n=256 k=1024", "amx_int8")
    space = schedule_space(ranked.candidate.program, SPECS["amx_int8"])
    assert all(knobs.split_k == 1 for _, knobs in space.ranked())

"""Products whose first factor is extended to 16 bits before their kernel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cpembed.codegen.epilogue import Epilogue
from cpembed.driver.matching import network_units
from cpembed.driver.named import hardware_spec, workload
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Product, TensorType
from cpembed.network.factor_extension import with_words
from cpembed.network.inputs import random_inputs
from cpembed.network.kernel_cache import Cache
from cpembed.network.plan import Planning
from cpembed.network.product_kernels import (
    KernelRequest,
    ProductKernels,
    choose_product_kernel,
)
from cpembed.network.service import NetworkRequest, network
from cpembed.network.shared_choices import (
    export_choices,
    import_choices,
    proven_kernel,
    read_choices,
)
from cpembed.steps import silent
from cpembed.targets.units import Units
from tests.features import needs

AVX2 = Units(None, tuple(map(hardware_spec, ("avx2_int8", "avx2_int16"))))
needs_avx2 = needs("avx2_int16")


def test_factors_of_bytes_alone_are_extended() -> None:
    product = workload("gemm m=4 n=8 k=16 dtype=uint8,int8,int32")
    wide = with_words(product)
    assert wide is not None
    assert [operand.dtype for operand in wide.inputs] == ["int16", "int8"]
    assert with_words(workload("gemm m=4 n=8 k=16 dtype=float32")) is None


@needs_avx2
def test_a_product_of_bytes_reads_words() -> None:
    kernel = choose_product_kernel(
        workload("gemm m=64 n=64 k=64 dtype=uint8,int8,int32"), AVX2, None
    )
    assert (kernel.target, kernel.extended) == ("avx2_int16", "uint8")


@needs_avx2
def test_operands_in_place_stay_bytes() -> None:
    product = workload("gemm m=64 n=64 k=64 dtype=uint8,int8,int32")
    kernel = choose_product_kernel(product, AVX2, None, in_place=("A",))
    assert kernel.extended is None


def test_a_dot_product_of_bytes_needs_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor has one, the other is not even searched."""
    monkeypatch.setattr("cpembed.network.product_kernels._kernel_on", lambda *_: "not searched")
    units = Units(None, tuple(map(hardware_spec, ("avx_vnni", "avx2_int8", "avx2_int16"))))
    product = workload("gemm m=64 n=64 k=64 dtype=uint8,int8,int32")
    seen: list[str] = []

    def search(spec: object, wide: object, *_: object) -> str:
        seen.append(str(wide))
        return "none"

    monkeypatch.setattr("cpembed.network.product_kernels._kernel_on", search)
    kernel = choose_product_kernel(product, units, None)
    assert not kernel.is_native
    assert all("int16" not in text for text in seen)


@needs_avx2
@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_networks_compute_the_same_bits(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.choice(["uint8", "int8"])
    sizes = {name: int(random.integers(*limits)) for name, limits in (
        ("c", (1, 40)), ("k", (1, 40)), ("h", (3, 12)), ("w", (3, 12)))}  # fmt: skip
    words = " ".join(f"{name}={size}" for name, size in sizes.items())
    layer = workload(f"conv2d n=1 {words} r=3 s=3 pad=1 dtype={first},int8,int32")
    shape = layer.output.shape
    kind = Product(layer, shape, epilogue=Epilogue("uint8", scale=True))
    weights = random.integers(-128, 128, layer.inputs[1].shape).astype(np.int8)
    scale = np.full(sizes["k"], 1 / (128 * math.sqrt(9 * sizes["c"])), np.float32)
    image = TensorType((1, sizes["c"], sizes["h"], sizes["w"]), str(first))
    operator = Operator("conv", kind, ("x", "w", "s"), ("y",))
    graph = Graph("words", {"x": image}, ("y",), {"w": weights, "s": scale}, (operator,))
    request = NetworkRequest(AVX2, None, Planning(cache=Cache(None)), times=False)
    result = network(graph, request, random_inputs(graph, seed))
    assert not result.failed
    (entry,) = (o for o in result.document["operators"] if o["kind"] == "product")
    assert entry["embedded_on"] in ("avx2_int16", "avx2_int8")


def test_a_named_target_multiplies_what_it_is_named_for() -> None:
    units = network_units("avx2_int8")
    kernel = choose_product_kernel(
        workload("gemm m=16 n=16 k=16 dtype=uint8,int8,int32"), units, None
    )
    assert kernel.extended is None


@needs_avx2
def test_a_choice_of_another_machine_is_extended_too(tmp_path: Path) -> None:
    request = KernelRequest(
        workload("gemm m=64 n=64 k=64 dtype=uint8,int8,int32"), Epilogue("int32"), placed=False
    )
    kernels = ProductKernels(AVX2, Cache(tmp_path / "one"))
    kernels.search([request], silent)
    assert export_choices(kernels.cache, tmp_path / "choices.jsonl") == 1
    other = ProductKernels(AVX2, Cache(tmp_path / "two"))
    import_choices(other.cache, tmp_path / "choices.jsonl")
    (choice,) = read_choices(other.cache)
    assert choice.extends
    kernel = proven_kernel(choice, AVX2, request.workload, request.searched, ())
    expected = kernels.lookup(request)
    assert kernel is not None
    assert expected is not None
    assert (kernel.extended, kernel.cost_us) == (expected.extended, expected.cost_us)

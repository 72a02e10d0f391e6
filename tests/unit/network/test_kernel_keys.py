"""Kernels of products are kept under all that their choice depends on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpembed.driver.matching import network_units
from cpembed.driver.named import workload
from cpembed.network.kernel_cache import Cache
from cpembed.network.product_kernels import KernelRequest, ProductKernels
from cpembed.targets import tuner


def test_what_was_tuned_since_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` takes the record of a workload, so a network compiled after tuning must, too."""
    kernels = ProductKernels(network_units("avx2_int8"), Cache(None))
    request = KernelRequest(workload("gemm m=8 n=16 k=16", "avx2_int8"), None, placed=False)
    records: dict[str, Any] = {}
    monkeypatch.setattr(
        tuner,
        "stored_record",
        lambda target, lookup: records.get(lookup.workload.name),
    )
    untuned = kernels.key(request)
    assert kernels.key(request) == untuned
    trial = SimpleNamespace(identifier="0123456789ab", key="m:4 n:2")
    records["gemm"] = SimpleNamespace(trial=trial, trials=16)
    tuned = kernels.key(request)
    records["gemm"] = SimpleNamespace(trial=trial, trials=32)
    assert len({untuned, tuned, kernels.key(request)}) == 3

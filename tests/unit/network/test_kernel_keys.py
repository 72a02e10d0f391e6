"""Kernels of products are kept under all that their choice depends on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cpembed.driver.matching import network_units
from cpembed.driver.named import workload
from cpembed.network.kernel_cache import Cache
from cpembed.network.product_kernels import KernelRequest, ProductKernels, units_digest
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


def test_a_target_is_what_its_file_says_wherever_the_file_is() -> None:
    units = network_units("avx2_int8")
    assert units.named is not None
    moved = replace(units, named=replace(units.named, path="/elsewhere/avx2_int8.toml"))
    assert units_digest(moved) == units_digest(units)
    # Neither is in the text that a specification prints.
    memory = {
        name: replace(each, alignment_bytes=2 * each.alignment_bytes)
        for name, each in units.named.instruction.memory.items()
    }
    instruction = replace(units.named.instruction, memory=memory)
    changed = replace(units, named=replace(units.named, instruction=instruction))
    assert repr(changed) == repr(units)
    assert units_digest(changed) != units_digest(units)

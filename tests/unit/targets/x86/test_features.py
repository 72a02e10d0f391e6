"""What is missing to run an instruction is said in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpembed.hw.loader import load_hardware_spec
from cpembed.network.operators.attention_tiles import merged
from cpembed.targets.x86 import features
from cpembed.targets.x86.dot_products import DOT_PRODUCTS

AMX = load_hardware_spec("amx_int8")


@pytest.fixture(autouse=True)
def _no_assumptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(features.ASSUME_VARIABLE, raising=False)


def pretend(monkeypatch: pytest.MonkeyPatch, *names: str, permission: bool = False) -> None:
    monkeypatch.setattr(features, "cpu_features", lambda: frozenset(names))
    monkeypatch.setattr(features, "request_tile_permission", lambda: permission)


def test_absent_cpu_features_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "amx_tile")
    assert features.missing_features(AMX) == ("CPU feature amx_int8",)


def test_a_refused_permission_is_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "amx_tile", "amx_int8")
    (message,) = features.missing_features(AMX)
    assert "permission" in message


def test_nothing_is_missing_with_features_and_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "amx_tile", "amx_int8", permission=True)
    assert features.missing_features(AMX) == ()


def test_permission_is_only_for_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "avx512f", "avx512_vnni")
    assert features.missing_features(load_hardware_spec("avx512_vnni")) == ()


def test_assumed_features_count_as_present(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    monkeypatch.setenv(features.ASSUME_VARIABLE, "amx_tile, amx_int8")
    assert features.missing_features(AMX) == ()
    other = replace(AMX, cpu_features=("amx_tile", "amx_fp16"))
    assert features.missing_features(other) == ("CPU feature amx_fp16",)


def test_a_kernel_of_two_instructions_keeps_what_either_needs() -> None:
    """Kernels for vectors of 256 bits take AVX-512 away, and the longer vectors need it."""
    for dot in DOT_PRODUCTS.values():
        needed = "avx512f" if dot.feature.startswith("avx512") else dot.feature.replace("_", "")
        for other in DOT_PRODUCTS.values():
            attributes = merged([other.attributes, dot.attributes])
            assert f"-{needed}" not in attributes, (dot.name, other.name)

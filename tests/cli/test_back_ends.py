"""A TOML of a user's that says ``backend = "x86"`` and that no kernel takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpembed.resources import hardware_spec_files
from tests.cli.calling import Caller

GEMM = ("gemm", "m=4", "n=32", "k=64")

EDITS = {
    "no feature": ("gemm_16x16x16", 'source = "', 'backend = "x86"\nsource = "', "cpu_features"),
    "another shape": ("avx512_vnni", "y = 16", "y = 8", "needs 16 lanes"),
}


@pytest.mark.parametrize("name", EDITS)
def test_portable_code_stands_in_and_the_shapes_are_said(
    cpembed: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("CPEMBED_ASSUME_CPU_FEATURES", "avx512f,avx512_vnni")
    shipped, old, new, reason = EDITS[name]
    text = hardware_spec_files()[shipped].read_text(encoding="utf-8")
    assert old in text
    target = tmp_path / "mine.toml"
    target.write_text(text.replace(old, new, 1), encoding="utf-8")
    ran = cpembed("run", *GEMM, "--target", str(target), "--json")
    assert (ran.code, ran.err.count("\n")) == (5, 1)
    assert (ran.json["verified"], ran.json["backend"]) == (True, "generic")
    for part in (reason, "amx_int8, avx2_", "cpembed targets", "portable code"):
        assert part in ran.err
    native = cpembed("run", *GEMM, "--target", str(target), "--backend", "native")
    native.is_one_line_error(5, reason, "amx_int8, avx2_")

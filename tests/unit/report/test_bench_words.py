"""What the table of a bench says of a run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from cpembed.driver.bench_rows import run_row
from cpembed.driver.named import workload
from cpembed.driver.run import run
from cpembed.driver.run_result import RunResult
from cpembed.report import bench


def test_a_run_in_which_padding_spreads_nan_says_so() -> None:
    words = "gemm m=3 n=5 k=7 dtype=float32"
    result = run(workload(words), "avx2_f32", backend="generic")
    assert isinstance(result, RunResult)
    for spreads in (False, True):
        check = replace(result.verification, spreads_nan=spreads)
        row = run_row(replace(result, verification=check))
        assert row.spreads_nan is spreads
        words = bench._verified(SimpleNamespace(error=None, run=row))  # type: ignore[arg-type]
        assert words.startswith("yes (generic)")
        assert ("padding spreads NaN" in words) is spreads

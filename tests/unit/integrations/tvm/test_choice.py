"""Which program of an operator is taken."""

from types import SimpleNamespace

import pytest
import tvm
from tvm import te

from cpembed.driver.tune import TuneResult, tune
from cpembed.integrations.tvm import kernels
from cpembed.integrations.tvm.fused import recognise_fused
from cpembed.integrations.tvm.kernels import Kernel, Machine, closed_kernel_of
from cpembed.runtime.tuning.database import DIRECTORY_VARIABLE
from tests.unit.integrations.tvm.modules import processor


def product(rows: int, first: str = "A", second: str = "B") -> tvm.tirx.PrimFunc:
    a = te.placeholder((rows, 64), "uint8", first)
    b = te.placeholder((64, 48), "int8", second)
    k = te.reduce_axis((0, 64), "k")
    sums = te.compute(
        (rows, 48), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k)
    )
    return te.create_prim_func([a, b, sums])


def test_what_was_tuned_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    machine, fused = Machine.open(processor(), None), recognise_fused(product(24))
    result = tune(fused.computation, processor(), trials=4, candidates=2)
    assert isinstance(result, TuneResult)
    best = machine.target.schedule_of(result.best)
    found = closed_kernel_of(machine, fused)
    assert isinstance(found, Kernel)
    assert found.program.schedule == best
    assert found.ranked.candidate.identifier == result.best.identifier


def test_equal_products_of_other_tensors_are_one_computation():
    (first, second) = (recognise_fused(product(24, *n)) for n in ("AB", "XY"))
    assert first.computation == second.computation
    assert first.computation != recognise_fused(product(25)).computation


def test_another_schedule_than_the_best_by_estimates_is_taken_where_it_was_tuned(monkeypatch):
    machine, fused = Machine.open(processor(), None), recognise_fused(product(24))
    usual = closed_kernel_of(machine, fused)
    assert isinstance(usual, Kernel)
    lowered = machine.target.lower(usual.ranked.candidate.program, None)
    other = machine.target.space(lowered).ranked()[-1].schedule
    assert other != usual.program.schedule
    choice = SimpleNamespace(ranked=lambda _: usual.ranked)
    record = SimpleNamespace(choice=choice, schedule=other)
    monkeypatch.setattr(kernels, "tuning_record", lambda target, lookup: record)
    found = closed_kernel_of(machine, fused)
    assert isinstance(found, Kernel)
    assert found.program.schedule == other

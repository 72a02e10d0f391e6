"""Places that a step of a kernel prefetches, read off its text, and nests to test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from cpembed.codegen.compiled import CompiledKernel
from cpembed.codegen.instruction import loop_variable
from cpembed.codegen.nest import KernelOperand, Nest, Prefetch
from cpembed.codegen.plan import Knobs, Script
from cpembed.codegen.prefetch import write_prefetches
from cpembed.driver.named import workload
from cpembed.driver.solve import solve
from cpembed.hw.instruction import HardwareSpec
from cpembed.ir.dtypes import size_bytes
from cpembed.ir.reference import random_inputs, reference
from cpembed.targets.cpu import lowering as kernel
from cpembed.targets.cpu import target as cpu_target
from cpembed.targets.cpu.calibration import calibration
from cpembed.targets.cpu.target import build, schedule_space
from cpembed.transform.program import DerivedProgram
from tests.features import require_features


class _T:
    min = staticmethod(min)


def prefetched_places(
    which: Prefetch,
    nest: Nest,
    step: tuple[int, ...],
    tasks: Mapping[str, int] | None = None,
) -> list[int]:
    """Elements whose lines a step prefetches of an operand; loops of tasks that ``tasks`` does not
    name are at their beginning."""
    operand = nest.operands["ABC".index(which.name)]
    script = Script()
    write_prefetches(script, replace(nest, prefetched=frozenset({which})))
    values: dict[str, object] = {"T": _T, **dict.fromkeys(operand.access.iterators, 0)}
    values |= tasks or {}
    values |= {loop_variable(o): at for o, at in zip(nest.reductions, step, strict=True)}
    places: list[int] = []
    condition = "True"
    for line in script.text().splitlines():
        if line.lstrip().startswith("if "):
            condition = line.strip().removeprefix("if ").removesuffix(":")
            continue
        place = re.search(rf"address_of\({operand.parameter}\[(.*)\]\)", line)
        assert place is not None
        if eval(condition, values):
            places.append(int(eval(place[1], values)))
    return places


def read_lines(nest: Nest, operand: KernelOperand, tasks: Mapping[str, int]) -> set[int]:
    """Lines of an operand that a task reads, by number."""
    loops = (*nest.reductions, *(o for o in nest.inner if o.name in operand.access.iterators))
    names = [loop.name for loop in loops]
    return lines_of(
        nest,
        operand,
        (
            operand.access.evaluate({**tasks, **dict(zip(names, point, strict=True))})
            for point in itertools.product(*(range(loop.extent) for loop in loops))
        ),
    )


def lines_of(nest: Nest, operand: KernelOperand, elements: Iterable[int]) -> set[int]:
    return {at * size_bytes(operand.dtype) // nest.line_bytes for at in elements}


def verified(
    spec: HardwareSpec, words: str, knobs: Knobs, threads: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Nest, CompiledKernel]:
    """A schedule and its kernel for a machine with hardly any cache, which has computed the same as
    the reference, on packed operands and in whole calls; skips where this CPU lacks something."""
    require_features(spec)
    monkeypatch.setenv("TVM_NUM_THREADS", threads)
    machine = replace(calibration(), cache_bytes=(1 << 9, 1 << 10, 1 << 20))
    for module in (kernel, cpu_target):
        monkeypatch.setattr(module, "calibration", lambda: machine)
    program = program_of(spec, words)
    space = schedule_space(program, spec)
    knobs = without_missing_loops(knobs, space.nest)
    built = build(program, spec, backend="native", knobs=knobs)
    inputs = random_inputs(program.workload, 4)
    expected = reference(program.workload, inputs)
    for result in (built.run(inputs), built.run_whole(inputs, ())):
        if expected.dtype.kind == "i":
            assert np.array_equal(result, expected)
        else:
            assert np.allclose(result, expected, atol=1e-3)
    return space.scheduled(program, knobs), built


def program_of(spec: HardwareSpec, words: str) -> DerivedProgram:
    layer = workload(words.split(), target=spec)
    (ranked, *_) = solve(layer, spec, constraints="in_place_padded", top=1).embeddings
    return ranked.candidate.program


def nest_of(spec: HardwareSpec, words: str, knobs: Knobs) -> Nest:
    """Blocks of loops that the nest lacks are left out."""
    space = schedule_space(program_of(spec, words), spec)
    return space.applied(without_missing_loops(knobs, space.nest))


def without_missing_loops(knobs: Knobs, nest: Nest) -> Knobs:
    """The same without blocks of loops that the nest lacks."""
    names = {loop.origin for loop in nest.tasks}
    blocks = {name: size for name, size in knobs.register_tiles.items() if name in names}
    return replace(knobs, register_tiles=blocks)

"""TVM's MetaSchedule with its best intrinsic for this CPU, vpdpbusd.

A layer is written as TVM's own int8 operators are: channels in fours, filters in sixteens, both
packed ahead, the image with its margin. That leaves the tuner the loops, and none of the packing
counts. What it finds is kept in the user's cache folder, by shape, machine and version; a search
that was interrupted goes on.
"""
# pyright: basic

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cpembed.codegen import runtime
from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.host_cpu import cpu_model
from cpembed.codegen.script import HEADER
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.measurement.interleaved import OUR_POOL
from cpembed.stores import LARGEST, DamagedRowError, Natural, decoded, store_folder, warn_damaged
from cpembed.targets.x86.baselines.problems import (
    BatchedProduct,
    Convolution,
    Numbers,
    Product,
    problem_of,
)
from cpembed.targets.x86.features import lacking

TRIALS = 100
"""Schedules that are measured for a layer."""

_NEEDS = ("avx512f", "avx512_vnni")
_PACKAGES = ("xgboost", "cloudpickle", "psutil")
_INTRINSIC = "dot_16x4_vnni"
_LANES, _DEPTH = 16, 4
_SEED = 0


def open_metaschedule(spec: HardwareSpec, stored: Epilogue | None = None) -> MetaSchedule:
    """MetaSchedule for a comparison on a target, of kernels that store ``stored``.

    Raises :class:`WorkloadError` where that is not the sums, and :class:`BackendUnavailable` where
    the target is none of this CPU's, or a package lacks.
    """
    if stored is not None and stored != Epilogue("int32"):
        raise WorkloadError(
            f"kernels of the baseline tvm store the sums, not {stored}: leave out what is to be "
            "stored, or the baseline"
        )
    if missing := lacking(_NEEDS):
        raise BackendUnavailable(f"the baseline tvm needs {' and '.join(missing)}")
    if not set(spec.cpu_features) & {"avx512_vnni", "amx_int8"}:
        raise BackendUnavailable(
            f"the baseline tvm compares int8 instructions of this CPU, not {spec.name}: "
            "use avx512_vnni or amx_int8"
        )
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise BackendUnavailable(
            f"the baseline tvm needs {', '.join(absent)}: pip install 'cpembed[bench]'"
        )
    return MetaSchedule()


@dataclass(frozen=True)
class MetaSchedule:
    """The tuner; ``trials`` and ``folder`` for tests."""

    trials: int = TRIALS
    cost_model: str = "xgb"
    folder: Path | None = None
    name: str = "tvm"
    pool: str = OUR_POOL

    def identity(self) -> dict[str, str | None]:
        found = versions()["apache-tvm"]
        return {"tvm": found, "trials": str(self.trials), "intrinsic": _INTRINSIC}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        workload = subject.workload
        types = tuple(operand.dtype for operand in workload.operands)
        if types != ("uint8", "int8", "int32"):
            return NotCovered(
                f"its intrinsic multiplies uint8 by int8, not {types[0]} by {types[1]}"
            )
        problem = problem_of(subject)
        if isinstance(problem, Convolution) and (problem.groups > 1 or len(problem.image) != 2):
            return NotCovered("its intrinsic takes convolutions of images in one group")
        if isinstance(problem, NotCovered):
            return problem
        if isinstance(problem, BatchedProduct):
            return NotCovered("no form with weights of batched products")
        shape = _Shape.of(problem)
        function, seconds = self._tuned(shape)
        return [_Tuned(problem, shape, function, self.trials, seconds, inputs)]

    def _tuned(self, shape: _Shape) -> tuple[Any, float]:
        """The best function so far, and the seconds that its search took in all."""
        meta_schedule = _meta_schedule()
        target = runtime.host_target()
        module = shape.module()
        place = self.folder or store_folder("metaschedule")
        about = repr((shape, cpu_model(), runtime.thread_count(), self.identity()))
        folder = place / hashlib.sha256(about.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        database = _database(folder)
        spent = folder / "seconds.json"
        seconds = _seconds(spent)
        missing = self.trials - len(database)
        if missing > 0:
            # Its log is kept in files; standard output is ours. Each search raises the level again.
            logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
            started = time.perf_counter()
            database = meta_schedule.tune_tir(
                module, target, str(folder), missing, num_trials_per_iter=min(32, missing),
                builder=meta_schedule.builder.LocalBuilder(f_build=_build),
                database=database, cost_model=self.cost_model, seed=_SEED,
            )  # fmt: skip
            seconds += time.perf_counter() - started
            write_whole(spent, json.dumps(seconds))
        best = meta_schedule.tir_integration.compile_tir(database, module, target)
        if best is None:
            raise BackendUnavailable("MetaSchedule found no schedule that runs")
        return runtime.tvm().compile(best.mod, target)["main"], seconds


def _database(folder: Path) -> Any:
    """What a search has kept; one that TVM cannot read is put aside, and the search begins anew."""
    kind = _meta_schedule().database.JSONDatabase
    try:
        _check_records(folder)
        return kind(work_dir=str(folder))
    except Exception as error:  # whatever TVM makes of a damaged line
        aside = folder.with_name(f"{folder.name}-damaged-{time.time_ns()}")
        folder.rename(aside)
        folder.mkdir()
        reason = str(error).strip().splitlines()[-1:]
        warn_damaged(f"{folder}: cannot be read ({' '.join(reason)}): put aside as {aside.name}")
        return kind(work_dir=str(folder))


def _check_records(folder: Path) -> None:
    """What TVM takes for granted, and crashes without: a record is of a workload that is there.

    Raises :class:`DamagedRowError`.
    """
    workloads, records = (
        (folder / f"database_{name}.json") for name in ("workload", "tuning_record")
    )
    if not records.exists():
        return
    known = [decoded(line, tuple[str, Any]) for line in workloads.read_bytes().splitlines()]
    for line in records.read_bytes().splitlines():
        index, _ = decoded(line, tuple[Natural, list[Any]])
        if index >= len(known):
            raise DamagedRowError(f"workload {index} of {len(known)}")


def _no_time(seconds: float) -> str | None:
    return None if 0 <= seconds <= LARGEST else f"{seconds} s"


def _seconds(path: Path) -> float:
    """What earlier searches took; nothing where that is damaged."""
    try:
        return decoded(path.read_bytes(), float, _no_time)
    except FileNotFoundError:
        return 0.0
    except (OSError, DamagedRowError) as error:
        warn_damaged(f"{path}: not read ({error}): the seconds of earlier searches are not counted")
        return 0.0


@dataclass(frozen=True)
class _Shape:
    """A convolution in packed form; the image has its margin."""

    batch: int
    image: Numbers
    channels: int
    filters: int
    window: Numbers
    stride: Numbers
    dilation: Numbers

    @classmethod
    def of(cls, problem: Convolution | Product) -> _Shape:
        """A matrix product is a convolution of a row of pixels by one."""
        if isinstance(problem, Product):
            one = (1, 1)
            return cls(1, (1, problem.m), problem.k, problem.n, one, one, one)
        image = tuple(size + 2 * pad for size, pad in zip(problem.image, problem.pad, strict=True))
        return cls(
            problem.batch, image, problem.channels, problem.filters,
            tuple(problem.window), tuple(problem.stride), tuple(problem.dilation),
        )  # fmt: skip

    @property
    def output(self) -> Numbers:
        sizes = zip(self.image, self.window, self.stride, self.dilation, strict=True)
        return tuple((size - (w - 1) * dilation - 1) // s + 1 for size, w, s, dilation in sizes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Of channels and of filters."""
        return -(-self.channels // _DEPTH), -(-self.filters // _LANES)

    @property
    def shapes(self) -> tuple[Numbers, Numbers, Numbers]:
        deep, wide = self.blocks
        return (
            (self.batch, *self.image, deep, _DEPTH),
            (wide, *self.window, deep, _LANES, _DEPTH),
            (self.batch, *self.output, wide, _LANES),
        )

    def module(self) -> Any:
        """The layer as a TVM module."""
        runtime.tvm()
        from tvm import te as expressions

        te: Any = expressions
        first, second, result = self.shapes
        image = te.placeholder(first, dtype="uint8", name="image")
        weights = te.placeholder(second, dtype="int8", name="weights")
        r, s = (te.reduce_axis((0, size)) for size in self.window)
        c, i = te.reduce_axis((0, first[3])), te.reduce_axis((0, _DEPTH))
        (down, along), (apart, across) = self.stride, self.dilation

        def product(n: Any, p: Any, q: Any, k: Any, lane: Any) -> Any:
            pixel = image[n, p * down + r * apart, q * along + s * across, c, i]
            weight = weights[k, r, s, c, lane, i]
            return te.sum(pixel.astype("int32") * weight.astype("int32"), axis=[r, s, c, i])

        sums = te.compute(result, product, name="sums")
        function = te.create_prim_func([image, weights, sums])
        return runtime.tvm().IRModule({"main": function})

    def packed_image(self, problem: Convolution | Product, inputs: Arrays) -> Any:
        deep, _ = self.blocks
        if isinstance(problem, Product):
            pixels = problem.left(inputs).reshape(1, 1, problem.m, problem.k)
            margin: Numbers = (0, 0)
        else:
            pixels, margin = problem.images(inputs), tuple(problem.pad)
        spare = deep * _DEPTH - self.channels
        around = [(0, 0), *((pad, pad) for pad in margin), (0, spare)]
        return np.pad(pixels, around).reshape(self.shapes[0])

    def packed_weights(self, problem: Convolution | Product, inputs: Arrays) -> Any:
        deep, wide = self.blocks
        if isinstance(problem, Product):
            found = problem.right(inputs).T.reshape(problem.n, problem.k, 1, 1)
        else:
            found = problem.weights(inputs)
        spare = (wide * _LANES - self.filters, deep * _DEPTH - self.channels)
        padded = np.pad(found, [(0, spare[0]), (0, spare[1]), (0, 0), (0, 0)])
        apart = padded.reshape(wide, _LANES, deep, _DEPTH, *self.window)
        return np.ascontiguousarray(apart.transpose(0, 4, 5, 2, 1, 3))

    def unpacked(self, problem: Convolution | Product, found: Any) -> Any:
        """The result as the workload's output."""
        whole = found.reshape(self.batch, *self.output, -1)[..., : self.filters]
        if isinstance(problem, Product):
            return problem.result(whole)
        return problem.result(np.moveaxis(whole, -1, 1))


class _Tuned:
    """The best schedule of a search."""

    def __init__(
        self,
        problem: Convolution | Product,
        shape: _Shape,
        function: Any,
        trials: int,
        seconds: float,
        inputs: Arrays,
    ) -> None:
        self.form = f"MetaSchedule, {trials} trials in {seconds:.0f} s"
        self._problem, self._shape, self._function = problem, shape, function
        arrays = (
            shape.packed_image(problem, inputs),
            shape.packed_weights(problem, inputs),
            np.zeros(shape.shapes[2], np.int32),
        )
        self._buffers = [runtime.tvm().runtime.tensor(array) for array in arrays]

    def run(self) -> None:
        self._function(*self._buffers)

    def output(self) -> Any:
        self.run()
        return self._shape.unpacked(self._problem, self._buffers[2].numpy())

    def primitives(self, calls: int) -> Primitives | None:
        del calls


@cache
def _meta_schedule() -> Any:
    """MetaSchedule, with an intrinsic that LLVM 22 accepts: the one that TVM 0.27 ships passes 16
    words where ``vpdpbusd`` takes 64 bytes.

    TVM's own must be there first, since the tuner imports them too. That parses the intrinsics of
    every GPU: it takes 40 seconds, once a process.
    """
    tvm = runtime.tvm()
    from tvm.s_tir import TensorIntrin, meta_schedule
    from tvm.s_tir.tensor_intrin import x86

    word = f'T.reinterpret(A.vload([0], dtype="uint8x{_DEPTH}"), dtype="int32")'
    source = f"""{HEADER}
def dot(
    A: T.Buffer(({_DEPTH},), "uint8", offset_factor=1),
    B: T.Buffer(({_LANES}, {_DEPTH}), "int8", offset_factor=1),
    C: T.Buffer(({_LANES},), "int32", offset_factor=1),
):
    with T.sblock("root"):
        T.reads(C[0:{_LANES}], A[0:{_DEPTH}], B[0:{_LANES}, 0:{_DEPTH}])
        T.writes(C[0:{_LANES}])
        C[T.ramp(0, 1, {_LANES})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C.vload([0], dtype="int32x{_LANES}"),
            T.reinterpret(T.broadcast({word}, {_LANES}), dtype="uint8x64"),
            B.vload([0, 0], dtype="int8x64"),
            dtype="int32x{_LANES}",
        )
"""
    description = x86.dot_product_16x4_u8i8i32_desc
    implementation = tvm.script.from_source(source)
    TensorIntrin.register(_INTRINSIC, description, implementation, override=True)
    return meta_schedule


def _build(module: Any, target: Any, parameters: Any) -> Any:
    """A candidate, in a process of its own: as TVM's builder does, without that import, which
    takes longer than a build may.
    """
    del parameters
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)

"""TVM's MetaSchedule with its best intrinsic for this CPU, vpdpbusd.

A layer is written as TVM's own int8 operators are: channels in fours, filters in sixteens, both
packed ahead, the image with its margin. That leaves the loops to the tuner, and packing does not
count. Results are stored in the user's cache folder by shape, machine and version; an interrupted
search continues.
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
from cpembed.codegen.plan import HEADER
from cpembed.errors import BackendUnavailable, WorkloadError
from cpembed.files import write_whole
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject
from cpembed.runtime.measurement.environment import versions
from cpembed.runtime.measurement.interleaved import OUR_POOL
from cpembed.stores import LARGEST, DamagedRowError, Natural, decoded, store_folder, warn_damaged
from cpembed.targets.x86.baselines import (
    BatchedProduct,
    Convolution,
    Numbers,
    Product,
    problem_of,
)
from cpembed.targets.x86.features import lacking

TRIALS = 100
"""Number of schedules that are measured for a layer."""

_NEEDS = ("avx512f", "avx512_vnni")
_PACKAGES = ("xgboost", "cloudpickle", "psutil")
_INTRINSIC = "dot_16x4_vnni"
_LANES, _DEPTH = 16, 4
_SEED = 0


def open_metaschedule(spec: HardwareSpec, stored: Epilogue | None = None) -> MetaSchedule:
    """Return MetaSchedule for a comparison on a target, of kernels with the epilogue ``stored``.

    Raises :class:`WorkloadError` for other outputs than the sums, and :class:`BackendUnavailable`
    if the target is not of this CPU or a package is missing.
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
    """The tuner; tests change the number of trials, the cost model and the folder."""

    trials: int = TRIALS
    cost_model: str = "xgb"
    folder: Path | None = None
    name: str = "tvm"
    pool: str = OUR_POOL

    def identity(self) -> dict[str, str | None]:
        version = versions()["apache-tvm"]
        return {"tvm": version, "trials": str(self.trials), "intrinsic": _INTRINSIC}

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
        shape = _Shape.of_problem(problem)
        function, seconds = self._tuned(shape)
        form = f"MetaSchedule, {self.trials} trials in {seconds:.0f} s"
        return [_TunedKernel(form, problem, shape, function, inputs)]

    def _tuned(self, shape: _Shape) -> tuple[Any, float]:
        """Return the best function so far, and the seconds that its search took in total."""
        meta_schedule = _meta_schedule()
        target = runtime.host_target()
        module = shape.module()
        key = repr((shape, cpu_model(), runtime.thread_count(), self.identity()))
        store = self.folder or store_folder("metaschedule")
        folder = store / hashlib.sha256(key.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        database = _database(folder)
        seconds_file = folder / "seconds.json"
        seconds = _seconds(seconds_file)
        missing = self.trials - len(database)
        if missing > 0:
            # MetaSchedule logs to files, and standard output belongs to results. Each search
            # raises the level again.
            logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
            started = time.perf_counter()
            database = meta_schedule.tune_tir(
                module, target, str(folder), missing, num_trials_per_iter=min(32, missing),
                builder=meta_schedule.builder.LocalBuilder(f_build=_build),
                database=database, cost_model=self.cost_model, seed=_SEED,
            )  # fmt: skip
            seconds += time.perf_counter() - started
            write_whole(seconds_file, json.dumps(seconds))
        best = meta_schedule.tir_integration.compile_tir(database, module, target)
        if best is None:
            raise BackendUnavailable("MetaSchedule found no schedule that runs")
        return runtime.tvm().compile(best.mod, target)["main"], seconds


# ------------------------------------------------------------------------------ stored searches


def _database(folder: Path) -> Any:
    """Open the records of a search; those that TVM cannot read are put aside, to start anew."""
    kind = _meta_schedule().database.JSONDatabase
    try:
        _check_records(folder)
        return kind(work_dir=str(folder))
    except Exception as error:  # TVM raises errors of many types for a damaged line.
        aside = folder.with_name(f"{folder.name}-damaged-{time.time_ns()}")
        folder.rename(aside)
        folder.mkdir()
        reason = str(error).strip().splitlines()[-1:]
        warn_damaged(f"{folder}: cannot be read ({' '.join(reason)}): put aside as {aside.name}")
        return kind(work_dir=str(folder))


def _check_records(folder: Path) -> None:
    """Check that each record belongs to a workload; TVM takes that for granted, and crashes.

    Raises :class:`DamagedRowError`.
    """
    workloads, records = (
        folder / f"database_{name}.json" for name in ("workload", "tuning_record")
    )
    if not records.exists():
        return
    count = len([decoded(line, tuple[str, Any]) for line in workloads.read_bytes().splitlines()])
    for line in records.read_bytes().splitlines():
        index, _ = decoded(line, tuple[Natural, list[Any]])
        if index >= count:
            raise DamagedRowError(f"workload {index} of {count}")


def _duration_error(seconds: float) -> str | None:
    return None if 0 <= seconds <= LARGEST else f"{seconds} s"


def _seconds(path: Path) -> float:
    """Return the seconds of earlier searches; 0 with a warning if the file is damaged."""
    try:
        return decoded(path.read_bytes(), float, _duration_error)
    except FileNotFoundError:
        return 0.0
    except (OSError, DamagedRowError) as error:
        warn_damaged(f"{path}: not read ({error}): the seconds of earlier searches are not counted")
        return 0.0


# ------------------------------------------------------------------------------ packed layers


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Convolution in packed form; the image includes its padding."""

    batch: int
    image: Numbers
    channels: int
    filters: int
    window: Numbers = (1, 1)
    stride: Numbers = (1, 1)
    dilation: Numbers = (1, 1)

    @classmethod
    def of_problem(cls, problem: Convolution | Product) -> _Shape:
        """Return the shape of a layer; a matrix product is a 1x1 convolution of a row of pixels."""
        if isinstance(problem, Product):
            return cls(batch=1, image=(1, problem.m), channels=problem.k, filters=problem.n)
        sizes = zip(problem.image, problem.pad, strict=True)
        return cls(
            batch=problem.batch,
            image=tuple(size + 2 * pad for size, pad in sizes),
            channels=problem.channels,
            filters=problem.filters,
            window=tuple(problem.window),
            stride=tuple(problem.stride),
            dilation=tuple(problem.dilation),
        )

    @property
    def output(self) -> Numbers:
        sizes = zip(self.image, self.window, self.stride, self.dilation, strict=True)
        return tuple((size - (w - 1) * dilation - 1) // s + 1 for size, w, s, dilation in sizes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Numbers of blocks of channels and of filters."""
        return -(-self.channels // _DEPTH), -(-self.filters // _LANES)

    @property
    def shapes(self) -> tuple[Numbers, Numbers, Numbers]:
        """Shapes of the packed image, weights and result."""
        channel_blocks, filter_blocks = self.blocks
        return (
            (self.batch, *self.image, channel_blocks, _DEPTH),
            (filter_blocks, *self.window, channel_blocks, _LANES, _DEPTH),
            (self.batch, *self.output, filter_blocks, _LANES),
        )

    def module(self) -> Any:
        """Return the layer as a TVM module."""
        runtime.tvm()
        from tvm import te as expressions

        te: Any = expressions
        first, second, result = self.shapes
        image = te.placeholder(first, dtype="uint8", name="image")
        weights = te.placeholder(second, dtype="int8", name="weights")
        r, s = (te.reduce_axis((0, size)) for size in self.window)
        c, i = te.reduce_axis((0, first[3])), te.reduce_axis((0, _DEPTH))
        (row_stride, column_stride), (row_dilation, column_dilation) = self.stride, self.dilation

        def product(n: Any, p: Any, q: Any, k: Any, lane: Any) -> Any:
            row, column = p * row_stride + r * row_dilation, q * column_stride + s * column_dilation
            weight = weights[k, r, s, c, lane, i]
            terms = image[n, row, column, c, i].astype("int32") * weight.astype("int32")
            return te.sum(terms, axis=[r, s, c, i])

        sums = te.compute(result, product, name="sums")
        function = te.create_prim_func([image, weights, sums])
        return runtime.tvm().IRModule({"main": function})

    def packed_image(self, problem: Convolution | Product, inputs: Arrays) -> Any:
        """Return the image with its padding, channels in fours."""
        if isinstance(problem, Product):
            pixels = problem.left(inputs).reshape(1, 1, problem.m, problem.k)
            pads: Numbers = (0, 0)
        else:
            pixels, pads = problem.images(inputs), problem.pad
        spare = self.blocks[0] * _DEPTH - self.channels
        around = [(0, 0), *((pad, pad) for pad in pads), (0, spare)]
        return np.pad(pixels, around).reshape(self.shapes[0])

    def packed_weights(self, problem: Convolution | Product, inputs: Arrays) -> Any:
        """Return the weights with channels in fours and filters in sixteens."""
        if isinstance(problem, Product):
            weights = problem.right(inputs).T.reshape(problem.n, problem.k, 1, 1)
        else:
            weights = problem.weights(inputs)
        channel_blocks, filter_blocks = self.blocks
        spare = filter_blocks * _LANES - self.filters, channel_blocks * _DEPTH - self.channels
        padded = np.pad(weights, [(0, spare[0]), (0, spare[1]), (0, 0), (0, 0)])
        blocked = padded.reshape(filter_blocks, _LANES, channel_blocks, _DEPTH, *self.window)
        return np.ascontiguousarray(blocked.transpose(0, 4, 5, 2, 1, 3))

    def unpacked(self, problem: Convolution | Product, packed: Any) -> Any:
        """Return a packed result as the workload's output."""
        result = packed.reshape(self.batch, *self.output, -1)[..., : self.filters]
        if isinstance(problem, Product):
            return problem.result(result)
        return problem.result(np.moveaxis(result, -1, 1))


class _TunedKernel:
    """Best schedule of a search as a :class:`~cpembed.runtime.baselines.Contender`."""

    def __init__(
        self,
        form: str,
        problem: Convolution | Product,
        shape: _Shape,
        function: Any,
        inputs: Arrays,
    ) -> None:
        self.form = form
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


# ------------------------------------------------------------------------------ MetaSchedule


@cache
def _meta_schedule() -> Any:
    """Return the module, with an intrinsic that LLVM 22 accepts.

    The one that TVM 0.27 ships passes 16 words where ``vpdpbusd`` takes 64 bytes.
    """
    tvm = runtime.tvm()
    # TVM's own intrinsics come first, since the tuner would import, and so restore, them later.
    # That parses those of every GPU, which takes 40 seconds, once per process.
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
    """Build a candidate, in a process of its own."""
    del parameters
    # As TVM's own builder does, but without the import of all intrinsics, which takes longer than
    # a build may.
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)

"""oneDNN as part of PyTorch: versions, instruction sets, threads, and its log of kernels.

oneDNN selects its implementation for the widest instruction set of the machine. If the target is
narrower, ``ONEDNN_MAX_CPU_ISA`` limits it to the target's, which works only before its first use in
the process ("CPU Dispatcher Control" in oneDNN's developer guide).

With profiling on, oneDNN writes one line per primitive to the process's standard output:
``onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx10_1_512_amx,...,0.0341797``,
the last field being milliseconds ("Verbose Mode" in the guide).
"""
# pyright: basic

# PyTorch is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import IO, Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable, InvariantError
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject
from cpembed.targets.x86.baselines.onednn_forms import Form, forms_of
from cpembed.targets.x86.features import lacking

_LIMIT = "ONEDNN_MAX_CPU_ISA"
_LIMITS: dict[str, str | None] = {
    "amx_int8": None,
    "amx_bf16": None,
    "avx512_vnni": "AVX512_CORE_VNNI",
    "avx512_bf16": "AVX512_CORE_BF16",
    "avx_vnni": "AVX2_VNNI",
    "avx512f": "AVX512_CORE",
    "avx2": "AVX2",
}
"""Limit by the CPU feature that provides the instruction; None for no limit. The first feature of a
target decides."""
_BFLOAT16_LIMIT = "AVX512_CORE_BF16"


def open_onednn(spec: HardwareSpec, stored: Epilogue | None = None) -> OneDnn:
    """Load PyTorch for a comparison on a target, of kernels with the epilogue ``stored``.

    Raises :class:`BackendUnavailable` if it is not installed, if oneDNN has nothing that compares
    with the target, or if the process no longer allows the limit.
    """
    limits = [limit for name, limit in _LIMITS.items() if name in spec.cpu_features]
    if not limits:
        raise BackendUnavailable(
            f"the baseline onednn compares instructions of this CPU, not {spec.name}: "
            f"use one of {', '.join(_LIMITS)}"
        )
    if find_spec("torch") is None:
        raise BackendUnavailable(
            "the baseline onednn is part of PyTorch, which is not installed: "
            "pip install 'cpembed[bench]'"
        )
    limit = limits[0]
    # Our stores use the conversion to bfloat16 of the CPU on any target of AVX-512, so oneDNN may.
    wide = limit is not None and limit.startswith("AVX512")
    if wide and stored and stored.dtype == "bfloat16" and not lacking(("avx512_bf16",)):
        limit = _BFLOAT16_LIMIT
    _set_limit(limit, spec.name)
    return _loaded(limit)


def _loaded(limit: str | None) -> OneDnn:
    """Load the library, when the environment has the limit already."""
    import torch

    # The same number as our kernels have.
    torch.set_num_threads(thread_count())
    return OneDnn(torch, limit)


def _set_limit(limit: str | None, target: str) -> None:
    present = os.environ.get(_LIMIT, "")
    if limit is None:
        if present and present not in ("ALL", "DEFAULT") and "AMX" not in present:
            raise BackendUnavailable(
                f"{_LIMIT}={present} keeps oneDNN from the instructions of {target}: "
                "unset it, in a process of its own"
            )
        return
    if present == limit:
        return
    if present or "torch" in sys.modules:
        raise BackendUnavailable(
            f"{target} is compared with oneDNN limited to the same instructions, and it is too "
            f"late for that here: set {_LIMIT}={limit} before the process starts"
        )
    os.environ[_LIMIT] = limit


@dataclass(frozen=True)
class OneDnn:
    """The loaded library; ``limit`` is the widest instruction set that it may use."""

    torch: ModuleType
    limit: str | None
    name = "onednn"
    pool = "openmp"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process loads the library itself.
        return _loaded, (self.limit,)

    def identity(self) -> dict[str, str | None]:
        version = re.search(r"MKL-DNN v([\d.]+)", self.torch.__config__.show())
        return {
            "onednn": version[1] if version else None,
            "torch": str(self.torch.__version__),
            "max_cpu_isa": self.limit,
        }

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        forms = forms_of(self.torch, subject, inputs)
        if isinstance(forms, NotCovered):
            return forms
        calls: dict[str, _Call] = {}
        for form in forms:
            # PyTorch executes small products of bfloat16 by another library.
            if not logged(form.call, self._profile):
                continue
            # A layout that was packed ahead may not suit the primitive, which then packs in every
            # call. Of forms that differ in packing alone, one that does not repack is used.
            if form.name not in calls or calls[form.name].repacks_weights():
                calls[form.name] = _Call(form, self._profile, self.limit)
        reason = f"torch does not run this {subject.operator} through oneDNN"
        return list(calls.values()) or NotCovered(reason)

    def _profile(self, on: bool) -> None:
        self.torch._C._verbose.mkldnn_set_verbose(int(on))


@dataclass(frozen=True)
class _Call:
    """Form as a :class:`~cpembed.runtime.baselines.Contender`."""

    _form: Form
    _profile: Callable[[bool], None]
    _limit: str | None

    @property
    def form(self) -> str:
        return self._form.name

    def run(self) -> Any:
        return self._form.call()

    def output(self) -> Any:
        return self._form.result(self._form.call())

    def repacks_weights(self) -> bool:
        return self.primitives(1).weights_us > 0

    def primitives(self, calls: int) -> Primitives:
        def work() -> None:
            for _ in range(calls):
                self._form.call()

        primitives = per_call(logged(work, self._profile), calls, self._form.weights)
        if self._limit and any("amx" in name for name in primitives.names):
            raise BackendUnavailable(
                f"oneDNN ran {' '.join(primitives.names)} although it is limited to "
                f"{self._limit}: set {_LIMIT} before the process starts"
            )
        return primitives


# ------------------------------------------------------------------------------ the log

_STDOUT = 1


@dataclass(frozen=True)
class Executed:
    """Primitive that ran: kind, implementation, sizes (``64x64x3x3`` of a reorder), microseconds.

    oneDNN's plain matrix product names no implementation.
    """

    kind: str
    implementation: str
    problem: str
    us: float

    @property
    def name(self) -> str:
        return self.implementation or self.kind


def read_log(lines: Iterable[str]) -> list[Executed]:
    """Return the primitives among the lines, in order; other lines are skipped.

    >>> line = "onednn_verbose,v1,primitive,exec,cpu,convolution,brg:amx,f,d,a,x,mb1_ic64,0.03125"
    >>> read_log([line])
    [Executed(kind='convolution', implementation='brg:amx', problem='mb1_ic64', us=31.25)]
    """
    primitives: list[Executed] = []
    for line in lines:
        fields = line.strip().split(",")
        if fields[0] != "onednn_verbose" or "exec" not in fields:
            continue
        # Older versions have fewer fields before "exec"; the next one is the engine.
        kind_onwards = fields[fields.index("exec") + 2 :]
        if len(kind_onwards) < 4:
            continue
        kind, implementation, *_, problem, milliseconds = kind_onwards
        try:
            us = float(milliseconds) * 1e3
        except ValueError:
            continue
        primitives.append(Executed(kind, implementation, problem, us))
    return primitives


def per_call(executed: list[Executed], calls: int, weights: str) -> Primitives:
    """Return averages over equal calls.

    Parameters
    ----------
    executed : list of Executed
        Primitives of all calls.
    calls : int
        Number of calls.
    weights : str
        Sizes of the weights as oneDNN writes them, which tell their reorders from others.
    """
    if not executed or len(executed) % calls:
        raise InvariantError(
            f"oneDNN reported {len(executed)} primitives over {calls} equal calls: "
            "unset ONEDNN_VERBOSE, or report this"
        )
    totals = {"work": 0.0, "activations": 0.0, "weights": 0.0}
    for primitive in executed:
        reordered = "weights" if primitive.problem == weights else "activations"
        totals[reordered if primitive.kind == "reorder" else "work"] += primitive.us / calls
    return Primitives(
        us=totals["work"],
        reorder_us=totals["activations"],
        weights_us=totals["weights"],
        names=tuple(primitive.name for primitive in executed[: len(executed) // calls]),
    )


def logged(work: Callable[[], object], profile: Callable[[bool], None]) -> list[Executed]:
    """Do work and return what oneDNN logs meanwhile; nothing of it reaches standard output.

    ``profile`` turns profiling on and off.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        with _standard_output_into(file):
            profile(True)
            try:
                work()
            finally:
                profile(False)
        file.seek(0)
        return read_log(file)


@contextmanager
def _standard_output_into(file: IO[str]) -> Generator[None]:
    """Redirect file descriptor 1, which the library writes to behind Python's back."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    # What C code has buffered so far belongs to the real output.
    libc.fflush(None)
    saved = os.dup(_STDOUT)
    try:
        os.dup2(file.fileno(), _STDOUT)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(saved, _STDOUT)
    finally:
        os.close(saved)

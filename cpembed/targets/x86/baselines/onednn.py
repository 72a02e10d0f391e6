"""oneDNN as PyTorch brings it: versions, instruction sets, threads.

oneDNN chooses its own implementation for the widest instruction set of the machine. Where the
target is narrower, ``ONEDNN_MAX_CPU_ISA`` limits it to the target's, which works only before it is
first used in the process ("CPU Dispatcher Control" in oneDNN's developer guide).
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject
from cpembed.targets.x86.baselines.onednn_forms import Form, forms_of
from cpembed.targets.x86.baselines.onednn_log import logged, per_call
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
"""The limit, None where there is to be none, by the CPU feature that provides the instruction; of
several the first."""
_HALVES = "AVX512_CORE_BF16"
"""The limit where bfloat16 is stored and the CPU converts to it: our stores of any target of
AVX-512 do."""


def open_onednn(spec: HardwareSpec, stored: Epilogue | None = None) -> OneDnn:
    """Load PyTorch for a comparison on a target, of kernels that store ``stored``.

    Raises :class:`BackendUnavailable` where it is not installed, where oneDNN has nothing that
    compares with the target, and where the process no longer allows the limit.
    """
    limits = [limit for name, limit in _LIMITS.items() if name in spec.cpu_features]
    if not limits:
        compared = ", ".join(_LIMITS)
        raise BackendUnavailable(
            f"the baseline onednn compares instructions of this CPU, not {spec.name}: "
            f"use one of {compared}"
        )
    if find_spec("torch") is None:
        raise BackendUnavailable(
            "the baseline onednn is part of PyTorch, which is not installed: "
            "pip install 'cpembed[bench]'"
        )
    limit = limits[0]
    wide = limit is not None and limit.startswith("AVX512")
    if wide and stored and stored.dtype == "bfloat16" and not lacking(("avx512_bf16",)):
        limit = _HALVES
    _set_limit(limit, spec.name)
    return _loaded(limit)


def _loaded(limit: str | None) -> OneDnn:
    """The environment has the limit already."""
    import torch

    # As many as our kernels have.
    torch.set_num_threads(thread_count())
    return OneDnn(torch, limit)


def _set_limit(limit: str | None, target: str) -> None:
    told = os.environ.get(_LIMIT, "")
    if limit is None:
        if told and told not in ("ALL", "DEFAULT") and "AMX" not in told:
            raise BackendUnavailable(
                f"{_LIMIT}={told} keeps oneDNN from the instructions of {target}: "
                "unset it, in a process of its own"
            )
        return
    if told == limit:
        return
    if told or "torch" in sys.modules:
        raise BackendUnavailable(
            f"{target} is compared with oneDNN limited to the same instructions, and it is too "
            f"late for that here: set {_LIMIT}={limit} before the process starts"
        )
    os.environ[_LIMIT] = limit


@dataclass(frozen=True)
class OneDnn:
    """The loaded library; ``limit`` is the instruction set that it may use at most."""

    torch: ModuleType
    limit: str | None
    name = "onednn"
    pool = "openmp"

    def __reduce__(self) -> tuple[Any, ...]:
        """The worker loads the library itself."""
        return _loaded, (self.limit,)

    def identity(self) -> dict[str, str | None]:
        built = re.search(r"MKL-DNN v([\d.]+)", self.torch.__config__.show())
        return {
            "onednn": built[1] if built else None,
            "torch": str(self.torch.__version__),
            "max_cpu_isa": self.limit,
        }

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        found = forms_of(self.torch, subject, inputs)
        if isinstance(found, NotCovered):
            return found
        chosen: dict[str, _Call] = {}
        for form in found:
            call = _Call(form, self._profile, self.limit)
            # PyTorch takes small products of bfloat16 to another library.
            if not logged(form.call, self._profile):
                continue
            # What it packs ahead may be packed again in every call: the layout depends on more than
            # packing is told. Of several ways to pack, one that fits is taken.
            if form.words not in chosen or chosen[form.words].packs_weights():
                chosen[form.words] = call
        reason = f"torch does not run this {subject.operator} through oneDNN"
        return list(chosen.values()) or NotCovered(reason)

    def _profile(self, on: bool) -> None:
        self.torch._C._verbose.mkldnn_set_verbose(int(on))


@dataclass(frozen=True)
class _Call:
    """A :class:`~cpembed.runtime.baselines.Contender`."""

    _form: Form
    _profile: Callable[[bool], None]
    _limit: str | None

    @property
    def form(self) -> str:
        return self._form.words

    def run(self) -> Any:
        return self._form.call()

    def output(self) -> Any:
        return self._form.result(self._form.call())

    def packs_weights(self) -> bool:
        return self.primitives(1).weights_us > 0

    def primitives(self, calls: int) -> Primitives:
        call = self._form.call

        def work() -> None:
            for _ in range(calls):
                call()

        found = per_call(logged(work, self._profile), calls, self._form.weights)
        if self._limit and any("amx" in name for name in found.names):
            raise BackendUnavailable(
                f"oneDNN ran {' '.join(found.names)} although it is limited to {self._limit}: "
                f"set {_LIMIT} before the process starts"
            )
        return found

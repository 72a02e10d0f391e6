"""Matrix products of float32 by BLAS: MKL as part of PyTorch, OpenBLAS as part of numpy.

Both are called on the operands as they lie in memory, transposed ones included, and MKL also on a
second factor that was packed ahead (``cblas_sgemm_compute``), as our kernels have it. Neither keeps
an account of its own times.
"""
# pyright: basic

# PyTorch is an extra, which a type checker need not find.
# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from cpembed.codegen.epilogue import Epilogue
from cpembed.codegen.runtime import thread_count
from cpembed.errors import BackendUnavailable
from cpembed.hw.instruction import HardwareSpec
from cpembed.runtime.baselines import Arrays, Contender, NotCovered, Primitives, Subject
from cpembed.targets.x86.baselines import BatchedProduct, Product, problem_of

_SET_THREADS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "")
)
"""Names of the function in builds of OpenBLAS."""


@dataclass(frozen=True)
class _Call:
    """Form as a :class:`~cpembed.runtime.baselines.Contender`.

    ``finish`` returns what ``run`` returned as the workload's output.
    """

    form: str
    run: Callable[[], Any]
    finish: Callable[[Any], Any]

    def output(self) -> Any:
        return self.finish(self.run())

    def primitives(self, calls: int) -> Primitives | None:
        del calls
        return None


def open_mkl(spec: HardwareSpec, stored: Epilogue | None = None) -> Mkl:
    """Load PyTorch for a comparison with its BLAS.

    Raises :class:`BackendUnavailable` if it is not installed or was built with another library, or
    if the target's products are not of float32.
    """
    _check_types(spec, stored, "mkl")
    if find_spec("torch") is None:
        raise BackendUnavailable(
            "the baseline mkl is part of PyTorch, which is not installed: "
            "pip install 'cpembed[bench]'"
        )
    return _loaded_mkl()


def open_openblas(spec: HardwareSpec, stored: Epilogue | None = None) -> OpenBlas:
    """Set up numpy for a comparison with its BLAS.

    Raises :class:`BackendUnavailable` if it has another library than an OpenBLAS whose threads can
    be set, or if the target's products are not of float32.
    """
    _check_types(spec, stored, "openblas")
    return _loaded_openblas()


def _check_types(spec: HardwareSpec, stored: Epilogue | None, name: str) -> None:
    dtypes = sorted({operand.dtype for operand in spec.instruction.computation.operands})
    if dtypes != ["float32"]:
        listed = " and ".join(filter(None, (", ".join(dtypes[:-1]), dtypes[-1])))
        raise BackendUnavailable(
            f"the baseline {name} multiplies float32, not {listed}: use one of avx512_f32, avx2_f32"
        )
    if stored not in (None, Epilogue("float32")):
        raise BackendUnavailable(
            f"the baseline {name} stores sums of float32 as they are, and nothing else"
        )


def _loaded_mkl() -> Mkl:
    import torch

    if not torch.backends.mkl.is_available():
        raise BackendUnavailable("this PyTorch has another BLAS than MKL")
    torch.set_num_threads(thread_count())
    return Mkl(torch)


def _loaded_openblas() -> OpenBlas:
    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    if "openblas" not in blas["name"]:
        raise BackendUnavailable(f"this numpy has another BLAS than OpenBLAS: {blas['name']}")
    _set_openblas_threads(thread_count())
    return OpenBlas(str(blas["version"]))


def _set_openblas_threads(count: int) -> None:
    # numpy has no function for this, but the library that it loads has one.
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in sorted(folder.glob("*openblas*")):
        library = ctypes.CDLL(str(path))
        setter = next((name for name in _SET_THREADS if hasattr(library, name)), None)
        if setter is not None:
            library[setter](count)
            return
    raise BackendUnavailable(f"no OpenBLAS in {folder} whose threads can be set")


def _factors(
    subject: Subject, inputs: Arrays, convert: Callable[[Any], Any] = lambda array: array
) -> tuple[Product | BatchedProduct, Any, Any] | NotCovered:
    """Return a product with its converted factors, as views with the reduction inside.

    A vector becomes a matrix of one column.
    """
    problem = problem_of(subject)
    if isinstance(problem, NotCovered):
        return problem
    if not isinstance(problem, Product | BatchedProduct):
        return NotCovered("BLAS has no convolutions")
    first, second = (
        convert(array.reshape(-1, 1) if array.ndim == 1 else array)
        for array in (inputs["A"], inputs["B"])
    )
    return (
        problem,
        first.swapaxes(-1, -2) if problem.left_transposed else first,
        second.swapaxes(-1, -2) if problem.right_transposed else second,
    )


@dataclass(frozen=True)
class Mkl:
    """PyTorch with MKL."""

    torch: ModuleType
    name = "mkl"
    pool = "openmp"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process loads the library itself.
        return _loaded_mkl, ()

    def identity(self) -> dict[str, str | None]:
        config = self.torch.__config__.show()
        version = re.search(r"Math Kernel Library Version ([\w.-]+)", config)
        return {"mkl": version[1] if version else None, "torch": str(self.torch.__version__)}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        torch = self.torch
        with torch.inference_mode():
            factors = _factors(subject, inputs, torch.from_numpy)
            if isinstance(factors, NotCovered):
                return factors
            problem, first, second = factors

            def finish(tensor: Any) -> Any:
                return problem.result(tensor.numpy())

            if isinstance(problem, BatchedProduct):
                return [_Call("torch.bmm", lambda: torch.bmm(first, second), finish)]
            calls = [_Call("torch.mm", lambda: torch.mm(first, second), finish)]
            if not problem.left_transposed:
                columns = second.T.contiguous()
                packed = torch.ops.mkl._mkl_reorder_linear_weight(columns, problem.m)
                linear = torch.ops.mkl._mkl_linear

                def run() -> Any:
                    return linear(first, packed, columns, None, problem.m)

                calls.append(_Call("mkl._mkl_linear, packed ahead", run, finish))
            return calls


@dataclass(frozen=True)
class OpenBlas:
    """numpy with OpenBLAS of this version."""

    version: str
    name = "openblas"
    pool = "openblas"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process sets the threads itself.
        return _loaded_openblas, ()

    def identity(self) -> dict[str, str | None]:
        return {"openblas": self.version, "numpy": np.__version__}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        factors = _factors(subject, inputs)
        if isinstance(factors, NotCovered):
            return factors
        problem, first, second = factors
        batch = first.shape[:-2]
        result = np.empty((*batch, first.shape[-2], second.shape[-1]), np.float32)

        def run() -> Any:
            return np.matmul(first, second, out=result)

        # The next call overwrites the result.
        return [_Call("numpy.matmul", run, lambda output: problem.result(output.copy()))]

"""Matrix products of float32 by BLAS: MKL's as PyTorch brings it, OpenBLAS's as numpy does.

Both are called on the operands as they lie, transposed ones included, and MKL's also on a second
factor that was packed ahead (``cblas_sgemm_compute``), as our kernels have it. Neither keeps an
account of itself: a call is timed.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
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
from cpembed.targets.x86.baselines.problems import BatchedProduct, Product, problem_of

_SET_THREADS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("scipy_", "")
    for suffix in ("64_", "")
)
"""Names of the function in builds of OpenBLAS."""


@dataclass(frozen=True)
class _Call:
    """A :class:`~cpembed.runtime.baselines.Contender`; ``finish`` makes an array of what it
    returns, in the shape of the workload's output.
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

    Raises :class:`BackendUnavailable` where it is not installed or was built with another library,
    and where a target's products are not of float32.
    """
    _check(spec, stored, "mkl")
    if find_spec("torch") is None:
        raise BackendUnavailable(
            "the baseline mkl is part of PyTorch, which is not installed: "
            "pip install 'cpembed[bench]'"
        )
    return _loaded_mkl()


def open_openblas(spec: HardwareSpec, stored: Epilogue | None = None) -> OpenBlas:
    """Numpy for a comparison with its BLAS; raises :class:`BackendUnavailable` where that is none
    whose threads can be set, and where a target's products are not of float32.
    """
    _check(spec, stored, "openblas")
    return _loaded_openblas()


def _check(spec: HardwareSpec, stored: Epilogue | None, name: str) -> None:
    instruction = spec.instruction
    dtypes = {operand.dtype for operand in instruction.computation.operands}
    if dtypes != {"float32"}:
        raise BackendUnavailable(
            f"the baseline {name} multiplies float32, not {_and(sorted(dtypes))}: "
            "use one of avx512_f32, avx2_f32"
        )
    if stored not in (None, Epilogue("float32")):
        raise BackendUnavailable(
            f"the baseline {name} stores sums of float32 as they are, and nothing else"
        )


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


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
    """Numpy offers no way to say it, the library that it loads does."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in sorted(folder.glob("*openblas*")):
        library = ctypes.CDLL(str(path))
        found = next((name for name in _SET_THREADS if hasattr(library, name)), None)
        if found is not None:
            library[found](count)
            return
    raise BackendUnavailable(f"no OpenBLAS in {folder} whose threads can be set")


@dataclass(frozen=True)
class Mkl:
    """The loaded library."""

    torch: ModuleType
    name = "mkl"
    pool = "openmp"

    def __reduce__(self) -> tuple[Any, ...]:
        """The worker loads the library itself."""
        return _loaded_mkl, ()

    def identity(self) -> dict[str, str | None]:
        built = re.search(r"Math Kernel Library Version ([\w.-]+)", self.torch.__config__.show())
        return {"mkl": built[1] if built else None, "torch": str(self.torch.__version__)}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        with self.torch.inference_mode():
            return self._contenders(subject, inputs)

    def _contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        torch, problem = self.torch, _product_of(subject)
        if isinstance(problem, NotCovered):
            return problem

        def finish(found: Any) -> Any:
            return problem.result(found.numpy())

        first, second = (torch.from_numpy(_whole(problem, inputs[name])) for name in "AB")
        first, second = _turned(problem, first, second)
        if isinstance(problem, BatchedProduct):
            return [_Call("torch.bmm", lambda: torch.bmm(first, second), finish)]
        found = [_Call("torch.mm", lambda: torch.mm(first, second), finish)]
        if not problem.left_transposed:
            columns = second.T.contiguous()
            packed = torch.ops.mkl._mkl_reorder_linear_weight(columns, problem.m)
            linear = torch.ops.mkl._mkl_linear
            found.append(
                _Call(
                    "mkl._mkl_linear, packed ahead",
                    lambda: linear(first, packed, columns, None, problem.m),
                    finish,
                )
            )
        return found


@dataclass(frozen=True)
class OpenBlas:
    """numpy's; ``version`` is OpenBLAS's."""

    version: str
    name = "openblas"
    pool = "openblas"

    def __reduce__(self) -> tuple[Any, ...]:
        """The worker sets the threads itself."""
        return _loaded_openblas, ()

    def identity(self) -> dict[str, str | None]:
        return {"openblas": self.version, "numpy": np.__version__}

    def contenders(self, subject: Subject, inputs: Arrays) -> Sequence[Contender] | NotCovered:
        problem = _product_of(subject)
        if isinstance(problem, NotCovered):
            return problem
        first, second = (_whole(problem, inputs[name]) for name in "AB")
        first, second = _turned(problem, first, second)
        batch = problem.workload.output.shape[0] if isinstance(problem, BatchedProduct) else 1
        shape = (batch,) * isinstance(problem, BatchedProduct)
        result = np.empty((*shape, first.shape[-2], second.shape[-1]), np.float32)
        run = lambda: np.matmul(first, second, out=result)  # noqa: E731
        return [_Call("numpy.matmul", run, lambda found: problem.result(found.copy()))]


def _product_of(subject: Subject) -> Product | BatchedProduct | NotCovered:
    problem = problem_of(subject)
    if isinstance(problem, Product | BatchedProduct):
        return problem
    return problem if isinstance(problem, NotCovered) else NotCovered("BLAS has no convolutions")


def _whole(problem: Product | BatchedProduct, array: Any) -> Any:
    """A factor with two axes, or three of a batch: a vector is a matrix of one column."""
    return array.reshape(-1, 1) if isinstance(problem, Product) and array.ndim == 1 else array


def _turned(problem: Product | BatchedProduct, first: Any, second: Any) -> tuple[Any, Any]:
    """As views with the reduction inside, whatever memory has."""

    def exchanged(array: Any) -> Any:
        return array.swapaxes(-1, -2)

    return (
        exchanged(first) if problem.left_transposed else first,
        exchanged(second) if problem.right_transposed else second,
    )

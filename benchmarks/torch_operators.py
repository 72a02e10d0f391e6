"""Coverage of PyTorch's operators: the samples of its own database, exported, read and evaluated.

``python -m benchmarks.torch_operators --page`` writes ``docs/torch-operators.md``; the slow test
``tests/unit/frontends/torch/test_operator_database.py`` runs the same samples.
"""
# pyright: basic

# What it imports is an extra, which a type checker need not find.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from benchmarks.coverage import difference, refusal, table
from cpembed.errors import CpembedError
from cpembed.frontends.torch import from_exported
from cpembed.frontends.torch.nodes import array_of
from cpembed.graph.graph import Graph, evaluate

PAGE = Path(__file__).parent.parent / "docs" / "torch-operators.md"
ELEMENT_TYPES = (torch.float32, torch.int64, torch.bool)
SAMPLES = 2
"""Number of samples of an operator and an element type: the database's first and last."""
TOLERANCE = 2e-5
"""Tolerance relative to an element, or to the largest element of a result."""
UNDEFINED = frozenset({
    "empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided",
    "resize_as_",
})  # fmt: skip
"""Operators whose results are whatever lies in memory: types are compared, elements are not."""

OPEN_ORDER = frozenset(("sort", "argsort", "topk", "kthvalue"))
"""Operators that leave open which of several equal elements comes first: of indices the types are
compared, of values the elements."""

COMPILED = (
    *("abs", "add", "clamp", "cumsum", "div.floor_rounding", "exp", "fmod", "lgamma"),
    *("log1p", "lt"),
    *("logsumexp", "matmul", "mean", "permute", "remainder", "roll", "sigmoid", "softmax"),
    *("std", "where", "nn.functional.avg_pool2d", "nn.functional.conv2d", "nn.functional.gelu"),
    *("nn.functional.interpolate.bilinear", "nn.functional.interpolate.nearest-exact"),
    *("nn.functional.layer_norm", "nn.functional.max_pool2d", "nn.functional.pad.reflect"),
    "nn.functional.scaled_dot_product_attention",
)
"""Operators of which a sample is compiled, one or more of every kind of a graph."""

RIGHT, REFUSED, NOT_EXPORTED, WRONG, BROKEN = "right", "refused", "not exported", "WRONG", "BROKEN"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a sample: one of the words above, and the message that comes with it."""

    operator: str
    dtype: str
    sample: int
    result: str
    message: str = ""


class OperatorModel(torch.nn.Module):
    """An operator as a model whose inputs are the tensors of a sample."""

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Any], spec: Any) -> None:
        super().__init__()
        self.function, self.spec = function, spec
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        (first, args), kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(first, *args, **kwargs)


def full_name(info: Any) -> str:
    """Return the database's name of an operator, with that of its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def names() -> list[str]:
    """Return all operators of the database."""
    return sorted({full_name(info) for info in op_db})


def samples(info: Any, dtype: torch.dtype, count: int) -> Iterator[tuple[int, Any]]:
    """Yield samples with their numbers: the first, the last, and some between.

    Parameters
    ----------
    info : OpInfo
        An operator of the database.
    dtype : torch.dtype
        Element type.
    count : int
        Maximum number of samples.
    """
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    inputs = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    places = np.linspace(0, len(inputs) - 1, min(count, len(inputs)))
    for number in sorted({round(k) for k in places}):
        yield number, inputs[number]


def outcomes(name: str, count: int = SAMPLES) -> list[Outcome]:
    """Return the outcomes of an operator's samples."""
    outcome_list: list[Outcome] = []
    for info in op_db:
        if full_name(info) != name:
            continue
        for dtype in ELEMENT_TYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            short = str(dtype).removeprefix("torch.")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    numbered_samples = list(samples(info, dtype, count))
                except Exception as error:  # Of the database itself.
                    outcome_list.append(Outcome(name, short, 0, NOT_EXPORTED, _line(error)))
                    continue
                for number, sample in numbered_samples:
                    result, message = outcome(info, sample)
                    outcome_list.append(Outcome(name, short, number, result, message))
    return outcome_list


def outcome(info: Any, sample: Any) -> tuple[str, str]:
    """Export one sample, read it, and compare its evaluation with PyTorch's result."""
    model, tensors = as_model(info, sample)
    try:
        torch.manual_seed(0)
        torch_result = model(*(tensor.clone() for tensor in tensors))
        program = torch.export.export(model, tensors)
    except Exception as error:  # PyTorch's own limits.
        return NOT_EXPORTED, _line(error)
    try:
        graph = from_exported(program, name=full_name(info))
        results = evaluated(graph, tensors)
    except CpembedError as error:
        try:
            return REFUSED, refusal(error)
        except AssertionError as assertion:
            return BROKEN, str(assertion)
    except Exception:
        return BROKEN, traceback.format_exc()
    expected = [leaf for leaf in pytree.tree_leaves(torch_result) if isinstance(leaf, torch.Tensor)]
    is_open = full_name(info) in OPEN_ORDER
    message = compare(results, expected, full_name(info) not in UNDEFINED, is_open)
    return (WRONG, message) if message else (RIGHT, "")


def as_model(info: Any, sample: Any) -> tuple[OperatorModel, tuple[torch.Tensor, ...]]:
    """Return an operator as a model, and its inputs."""
    leaves, spec = pytree.tree_flatten(((sample.input, sample.args), sample.kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return OperatorModel(info.op, leaves, spec).eval(), tensors


def compiled_difference(name: str, target: str) -> str:
    """Return the difference of a compiled sample of an operator from PyTorch's result.

    It is the largest sample that is read and whose result is not known before it runs.
    """
    from cpembed.network.build import compile_model

    info = next(info for info in op_db if full_name(info) == name)
    pairs = [as_model(info, sample) for _, sample in samples(info, torch.float32, SAMPLES)]
    for model, tensors in sorted(pairs, key=lambda p: -sum(t.numel() for t in p[1])):
        try:
            graph = from_exported(torch.export.export(model, tensors), name="compiled")
        except CpembedError:
            continue
        if not graph.operators or not all(tensor.numel() for tensor in tensors):
            continue
        arrays = [tensor.contiguous().numpy() for tensor in tensors]
        network = compile_model(graph, target, threads=1)
        results = network.run(dict(zip(graph.inputs, arrays, strict=True)))
        expected = pytree.tree_leaves(model(*tensors))
        return compare([np.asarray(results[name]) for name in graph.outputs], expected, True)
    return "no sample is read"


def evaluated(graph: Graph, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return the outputs of a graph by numpy."""
    arrays = [tensor.detach().contiguous() for tensor in tensors]
    inputs = {name: array.numpy() for name, array in zip(graph.inputs, arrays, strict=True)}
    values = evaluate(graph, inputs, keep=lambda name: False)
    return [values[name] for name in graph.outputs]


def compare(
    results: Sequence[np.ndarray],
    tensors: Sequence[torch.Tensor],
    elements: bool,
    open_order: bool = False,
) -> str:
    """Return the difference in a sentence; an empty text if all is equal.

    Parameters
    ----------
    results : sequence of numpy.ndarray
        Results of the graph.
    tensors : sequence of torch.Tensor
        Results of PyTorch.
    elements : bool
        True to compare elements, not only types and shapes.
    open_order : bool
        True if the last result, of several or of integers, is an index among equal elements.
    """
    if len(results) != len(tensors):
        return f"{len(results)} results for {len(tensors)}"
    for number, (result, tensor) in enumerate(zip(results, tensors, strict=True)):
        expected = array_of(tensor.resolve_conj().resolve_neg())
        is_index = open_order and number == len(results) - 1 and expected.dtype == np.int64
        if (is_index or not elements) and (result.dtype, result.shape) == (
            expected.dtype,
            expected.shape,
        ):
            continue
        absolute = 0.0
        if expected.dtype.kind not in "biu":
            finite = np.abs(expected[np.isfinite(expected)])
            absolute = TOLERANCE * float(finite.max(initial=0))
        message = difference(result, expected, TOLERANCE, absolute)
        if message:
            return f"{number}: {message}"
    return ""


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


def all_outcomes(
    operators: Iterable[str], count: int, processes: int, seconds: float | None = None
) -> list[Outcome]:
    """Return the outcomes of several operators, computed in processes of their own.

    Parameters
    ----------
    operators : iterable of str
        Names of operators.
    count : int
        Maximum number of samples of each type.
    processes : int
        Number of processes.
    seconds : float or None
        Time after which the remaining operators are left out; None for no limit.
    """
    outcome_list: list[Outcome] = []
    end = math.inf if seconds is None else time.monotonic() + seconds
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_one_thread) as pool:
        for part in pool.map(partial(outcomes, count=count), operators):
            outcome_list.extend(part)
            for item in part:
                if item.result in (WRONG, BROKEN):
                    print(*item.__dict__.values(), flush=True)
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return outcome_list


def _one_thread() -> None:
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def page(outcome_list: Sequence[Outcome], count: int) -> str:
    """Return the page docs/torch-operators.md, of at most ``count`` samples of each type."""
    groups: dict[str, list[Outcome]] = {}
    for item in outcome_list:
        groups.setdefault(item.operator, []).append(item)
    counters = {name: Counter(item.result for item in items) for name, items in groups.items()}
    read = {name: row for name, row in counters.items() if row[RIGHT]}
    refused = {name: row for name, row in counters.items() if not row[RIGHT] and row[REFUSED]}
    counts = Counter(item.result for item in outcome_list)
    version = torch.__version__.partition("+")[0]
    text = f"""\
# Operators of PyTorch

Written by `python -m benchmarks.torch_operators --page --samples {count}` from the samples in
PyTorch's own database of operators (`torch.testing._internal`, PyTorch {version}), at most {count}
of an operator for each of float32, int64 and bool; what the limits are says [torch.md](torch.md).

Each sample is exported, read and evaluated beside PyTorch. *Right*: the same types, integers and
Booleans equal, floats within {TOLERANCE:g} of the largest element; of tensors that are not
initialized, the type alone. *Refused*: one line says why. What `torch.export` does not take is not
counted.

{len(counters)} of the database's {len(names()):,} operators have such samples. Of the
{len(read) + len(refused)} that can be exported, {len(read)} are read: {counts[RIGHT]:,} samples are
right, {counts[REFUSED]:,} are refused, {counts[WRONG] + counts[BROKEN]:,} are wrong.
"""
    rows = [
        (f"`{name}`", row[RIGHT], row[REFUSED] or "", _reason(groups[name]))
        for name, row in read.items()
    ]
    lines = text.splitlines()
    lines += ["", *table(("operator", "right", "refused", "the first reason"), rows)]
    lines += ["", "Not read at all:", ""]
    lines += [", ".join(f"`{name}`" for name in refused) + "."]
    return "\n".join(lines) + "\n"


def _reason(items: Iterable[Outcome]) -> str:
    """Return why the first rejected sample is, without its place."""
    first = next((item.message for item in items if item.result == REFUSED), "")
    reason = first.partition(": ")[2]
    return reason if len(reason) <= 120 else reason[:117] + "…"


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="of the database; by default all")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="leave out what takes longer")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    operators = arguments.operators or names()
    outcome_list = all_outcomes(
        operators, arguments.samples, arguments.processes, arguments.seconds
    )
    if arguments.page:
        PAGE.write_text(page(outcome_list, arguments.samples))
    print(Counter(item.result for item in outcome_list))
    return int(any(item.result in (WRONG, BROKEN) for item in outcome_list))


if __name__ == "__main__":
    sys.exit(main())

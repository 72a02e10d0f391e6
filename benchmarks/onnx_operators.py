"""Run the backend suite of ONNX, case by case, for the table in docs/onnx-operators.md.

    python -m benchmarks.onnx_operators

writes the table: of each operator of the format how many of the suite's cases are computed, and why
the others are rejected. A case whose results are wrong, or that ends in anything but a
:class:`ModelError` of one line, ends the script.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.coverage import difference, refusal, table
from cpembed.errors import ModelError
from cpembed.frontends import load_model
from cpembed.frontends.narrow import bytes_of
from cpembed.graph.graph import Graph, evaluate

PAGE = Path(__file__).parents[1] / "docs" / "onnx-operators.md"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""Parts of the suite. The part ``real`` are whole networks, which the tests read by themselves."""

Array = NDArray[Any]
DataSet = tuple[Sequence[Any], Sequence[Any]]
"""Inputs and outputs: arrays, and lists and None of the types that are no tensors."""


@dataclass(frozen=True)
class Case:
    """A model of the suite with inputs and results."""

    name: str
    model: onnx.ModelProto
    data: tuple[DataSet, ...]
    relative: float
    absolute: float

    @property
    def operator(self) -> str | None:
        """The only operator of the model, with its domain if that is not the standard one."""
        nodes = self.model.graph.node
        if len(nodes) != 1:
            return None
        domain = nodes[0].domain
        return nodes[0].op_type if domain in ("", "ai.onnx") else f"{domain}.{nodes[0].op_type}"


FORMS: Mapping[str, Callable[[int], bool]] = {
    "as published": lambda number: False,
    "parameters constant": lambda number: number > 0,
    "inputs constant": lambda number: True,
}
"""Forms in which a case is read, each with the inputs that are constants of the model."""


@cache
def cases() -> tuple[Case, ...]:
    """Return every case of the installed suite, in a fixed order."""
    from onnx.backend.test import loader

    case_list: list[Case] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for case in sorted(loader.load_model_tests(kind=kind), key=lambda case: case.name):
                model, data = case.model, case.data_sets
                if model is None:
                    model, data = _stored(Path(case.model_dir))
                case_list.append(Case(case.name, model, tuple(data), case.rtol, case.atol))
    return tuple(case_list)


def _stored(folder: Path) -> tuple[onnx.ModelProto, list[DataSet]]:
    model = onnx.load(folder / "model.onnx")
    sets = [
        (_values(part, "input", model.graph.input), _values(part, "output", model.graph.output))
        for part in sorted(folder.glob("test_data_set_*"))
    ]
    return model, sets


def _values(folder: Path, side: str, declared: Sequence[Any]) -> list[Any]:
    """Return the stored inputs or outputs of a case."""
    values: list[Any] = []
    for number, value in enumerate(declared):
        file = folder / f"{side}_{number}.pb"
        if file.exists():
            is_tensor = value.type.HasField("tensor_type")
            message = onnx.TensorProto() if is_tensor else onnx.SequenceProto()
            message.ParseFromString(file.read_bytes())
            values.append(message if is_tensor else None)
    return values


def _tensor(value: Any) -> onnx.TensorProto | None:
    """Return a value as a tensor of the format; None for one that is none."""
    if isinstance(value, onnx.TensorProto):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return numpy_helper.from_array(np.asarray(value))
    return None


def _array(value: Any) -> Array | None:
    """Return a value as a network takes or returns it; None if it is no tensor of numbers."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype == object:
        return None
    # A network takes and returns narrow types in bytes.
    return bytes_of(np.asarray(value))


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case in one form.

    It is the ``graph`` with its ``inputs``, whose results are right, or the reason of a rejection.
    """

    graph: Graph | None
    inputs: Mapping[str, Array]
    reason: str = ""


def outcome(case: Case, form: str, folder: Path) -> Outcome:
    """Read a case in one of :data:`FORMS` and compute it with numpy.

    Raises :class:`AssertionError` for results that are not those of the suite and for a message of
    more than one line; whatever else reading or computing raises is a bug.

    Parameters
    ----------
    case : Case
        A model with inputs and results.
    form : str
        Key of :data:`FORMS`.
    folder : Path
        Folder for the model's file.
    """
    values = case.data[0][0]
    model, inputs = _with_constants(case.model, values, FORMS[form])
    path = folder / "case.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        graph = load_model(path)
    except ModelError as error:
        message = refusal(error)
        return Outcome(None, inputs, message.removeprefix(f"{path}: ").removeprefix("case.onnx: "))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = evaluate(graph, inputs)
    message = result_difference(case, [results[name] for name in graph.outputs])
    assert not message, f"{case.name}: {message}"
    return Outcome(graph, inputs)


def _with_constants(
    model: onnx.ModelProto, values: Sequence[Any], is_constant: Callable[[int], bool]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the model with some of its inputs as constants, and the others."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    inputs: dict[str, Array] = {}
    # Models of the first versions declare their constants as inputs, too, at the end.
    for number, (declared, value) in enumerate(zip([*changed.graph.input], values, strict=False)):
        tensor, array = _tensor(value), _array(value)
        if tensor is not None and is_constant(number):
            constant = changed.graph.initializer.add()
            constant.CopyFrom(tensor)
            constant.name = declared.name
            changed.graph.input.remove(declared)
        elif array is not None:
            inputs[declared.name] = array
    return changed, inputs


def result_difference(case: Case, results: Sequence[Array]) -> str:
    """Return how results differ from those of the suite; an empty text if they do not."""
    expected_values = case.data[0][1]
    if len(results) != len(expected_values):
        return f"{len(results)} results for {len(expected_values)}"
    for result, value in zip(results, expected_values, strict=True):
        expected = _array(value)
        if expected is None:
            return "a result that is no tensor"
        # Results of two bytes are rounded at other steps.
        half = expected.dtype.itemsize == 2
        relative, absolute = (1e-2, 1e-3) if half else (max(case.relative, 1e-3), 1e-5)
        message = difference(result, expected, relative, max(case.absolute, absolute))
        if message:
            return message
    return ""


@dataclass(frozen=True)
class Result:
    """Result of a case.

    ``form`` is the first form in which it is computed, empty without one; ``reason`` is that of the
    rejection in the form that has the most constants.
    """

    case: Case
    form: str
    reason: str


def results(folder: Path) -> Iterator[Result]:
    """Yield the result of every case."""
    for case in cases():
        reason = ""
        for form in FORMS:
            form_outcome = outcome(case, form, folder)
            if form_outcome.graph is not None:
                yield Result(case, form, "")
                break
            reason = form_outcome.reason
        else:
            yield Result(case, "", reason)


def _shortened(reason: str) -> str:
    """Return the reason of a rejection without its place."""
    if "is of type" in reason or ": element type" in reason:
        return "element types that are not read"
    parts = reason.split(": ")
    if len(parts) > 1 and "(node " in parts[0] and not parts[0].startswith("operator"):
        parts = parts[1:]
    short = parts[0]
    if "is not known" in short and ("operator " in short or short.startswith("it ")):
        return "not read"
    return re.sub(r"^(input|constant) \w+ ", "an input ", short)


def page(case_results: Sequence[Result]) -> str:
    """Return the page docs/onnx-operators.md."""
    by_operator: dict[str, list[Result]] = defaultdict(list)
    several: list[Result] = []
    for result in case_results:
        name = result.case.operator
        (several if name is None else by_operator[name]).append(result)
    counts = Counter(result.form for result in case_results)
    published, *constant = (f"{counts[form]:,}" for form in FORMS)
    parameters, everything = constant
    text = f"""# Operators of ONNX

Written by `python -m benchmarks.onnx_operators`; what each operator's limits are says
[onnx.md](onnx.md).

Of the {len(case_results):,} cases of the backend suite of onnx {onnx.__version__} that are no whole
networks, {published} are computed as published; {parameters} more where all inputs but the first
are constants of the model (shapes, axes, scales), and {everything} where all are; {counts[""]:,}
are refused in one line. Every result is compared with the suite's. Of models of several operators,
among them operators that are written out by their definition, {_counted(several)} are computed.
"""
    rows: list[tuple[object, ...]] = []
    for name in sorted(by_operator, key=lambda name: ("." in name, name)):
        group = by_operator[name]
        forms = Counter(row.form for row in group)
        reasons = Counter(_shortened(row.reason) for row in group if not row.form)
        refused = "; ".join(
            f"{count}: {reason}"
            for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        )
        constant = len(group) - forms["as published"] - forms[""]
        rows.append((name, len(group), forms["as published"], constant or "", refused))
    head = ("operator", "cases", "computed", "with constants", "refused")
    return "\n".join([*text.splitlines(), "", *table(head, rows), ""])


def _counted(rows: Sequence[Result]) -> str:
    computed = sum(bool(row.form) for row in rows)
    return f"{computed} of {len(rows)}"


def main() -> None:
    """Run the command."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = page([*results(Path(folder))])
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()

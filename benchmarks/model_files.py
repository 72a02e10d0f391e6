"""Read, compile and check a folder of ONNX files, each in a process with limits.

    python -m benchmarks.model_files FOLDER [-o RESULTS.jsonl] [--read-only] [--definitions]
        [--only TEXT] [--sizes FILE.json] [--seconds S] [--memory GIB] [--target NAME]
        [--markdown FILE.md]

Every ``.onnx`` below the folder is read, compiled and run on random inputs, and its outputs are
compared with onnxruntime's. Sizes that a file leaves open are the first of some usual ones that
onnxruntime runs, or those of ``--sizes``: ``{"F.onnx": {"input": [1, 512], "sr": 16000}}``, where a
number binds an input that is a constant. Single integers are bound if a file is not read otherwise.

Small files come first. The results, a line of JSON a file, are appended as they come; the same
command goes on where it was stopped, and repeats a file only if it, the package or a limit that it
exceeded has changed. The table has a row a file: what was read, how many products run on which
instructions, those in portable code with the reason, the operators that only a fallback computes,
errors and seconds.

An error is relative to the largest magnitude of an output. It is judged by how far onnxruntime's
own results go apart when inputs or weights change in their last bits, since a rounding that falls
the other way may change any network's results. Where they go far apart, nothing is said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage import table
from benchmarks.model_inputs import Candidate, Reference, candidates, perturbed
from cpembed.errors import CpembedError
from cpembed.frontends import load_model
from cpembed.graph.graph import Graph, evaluate
from cpembed.runtime.measurement.environment import provenance, provenance_lines, source_digest

_LEAST_ERROR, _LEAST_HALF_ERROR = 1e-4, 5e-3
"""Error, relative to the largest magnitude of an output, below which floats are right: in general,
and of networks with floats of sixteen bits, in which onnxruntime adds and others round once."""
_LEAST_DIFFERENCE = 1e-7
"""Difference that is always right: the last bit of 1, in which approximations of sigmoid differ."""
_MOST_NOISE = 0.1
"""Difference among onnxruntime's own results from which nothing can be said of an output."""
_NOISE_FACTOR = 8.0
"""Maximum ratio of an error to the differences among onnxruntime's own results."""


# -- one file, in a process of its own ------------------------------------------------------------


class Report:
    """Document of a file, written anew after every step, so that a crash leaves the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}

    def add(self, **values: Any) -> None:
        """Add values and write the document."""
        self.values |= values
        # The process may be stopped while it writes.
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.values))
        part.replace(self.path)


def check_file(path: Path, bound: Mapping[str, Any], options: Any, report: Report) -> None:
    """Read, compile and run one file and write what comes of it.

    Parameters
    ----------
    path : Path
    bound : mapping
        Shapes of inputs by name, and numbers of inputs that are constants.
    options : Any
        Options of the command.
    report : Report
    """
    report.add(step="onnxruntime")
    reference, candidate, inputs = _reference(path, bound, report)
    shapes = {name: value for name, value in bound.items() if isinstance(value, list)}
    shapes = shapes or ({} if candidate is None else candidate.open_shapes)
    constants = {name: value for name, value in bound.items() if not isinstance(value, list)}
    report.add(step="read", shapes={name: list(shape) for name, shape in shapes.items()})
    graph = _read(path, shapes, constants, report)
    if graph is None and inputs is not None and not constants:
        # Numbers such as a rate of samples decide about branches.
        constants = {n: a.item() for n, a in inputs.items() if a.size == 1 and a.dtype.kind in "iu"}
        graph = _read(path, shapes, constants, report) if constants else None
    if graph is None:
        report.add(step="fallback")
        report.add(**_fallback(path, shapes), step="done")
        return
    report.add(
        constants=constants,
        operators=len(graph.operators),
        kinds=dict(Counter(type(operator.kind).__name__ for operator in graph.operators)),
    )
    if options.definitions and reference is not None and inputs is not None:
        from cpembed.driver.matching import network_units
        from cpembed.network.build import prepared_and_named

        report.add(step="prepare")
        prepared = prepared_and_named(graph, network_units(options.target))
        report.add(step="evaluate")
        report.add(**comparison(reference, inputs, _defined(prepared, inputs), _least_error(graph)))
        if report.values["right"] is False:
            # Tell what was read wrongly from what the passes changed.
            read = comparison(reference, inputs, _defined(graph, inputs), _least_error(graph))
            report.add(read_right=read["right"])
    elif not options.definitions and not options.read_only:
        report.add(step="compile")
        try:
            _compile(graph, reference, inputs, options.target, report)
        except CpembedError as error:
            report.add(compiled=False, refusal=str(error))
    report.add(step="done")


def _defined(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a network's outputs with numpy."""
    with np.errstate(all="ignore"):
        values = evaluate(graph, {name: inputs[name] for name in graph.inputs})
    return {name: values[name] for name in graph.outputs}


def _read(
    path: Path, shapes: Mapping[str, Any], constants: Mapping[str, Any], report: Report
) -> Graph | None:
    """Return the graph of a file, or None and write why it is not read."""
    # Unknown to versions of cpembed that cannot bind inputs.
    options = {"constants": constants} if constants else {}
    started = time.perf_counter()
    try:
        graph = load_model(path, shapes or None, **options)
    except CpembedError as error:
        report.add(read=False, refusal=str(error))
        return None
    report.add(read=True, read_s=time.perf_counter() - started)
    return graph


def _compile(
    graph: Graph,
    reference: Reference | None,
    inputs: Mapping[str, Any] | None,
    target: str,
    report: Report,
) -> None:
    """Compile and run a network, and write how its outputs differ from onnxruntime's."""
    from cpembed.network.inputs import random_inputs
    from cpembed.network.service import NetworkRequest, network

    arrays = random_inputs(graph, 1) if inputs is None else {n: inputs[n] for n in graph.inputs}
    request = NetworkRequest(target=target, verifies=inputs is None, times=False)
    started = time.perf_counter()
    result = network(graph, request, arrays)
    report.add(compiled=True, compile_s=time.perf_counter() - started)
    report.add(**_products(result.document))
    if reference is not None and inputs is not None:
        report.add(step="compare")
        report.add(**comparison(reference, inputs, result.run.outputs, _least_error(graph)))
    if report.values.get("right") is False:
        # Comparing each operator with its definition takes longer, and says which one it is.
        report.add(step="verify")
        result = network(graph, replace(request, verifies=True), arrays)
    report.add(differing=[verdict.operator for verdict in result.failed][:5])


def _reference(
    path: Path, bound: Mapping[str, Any], report: Report
) -> tuple[Reference | None, Candidate | None, dict[str, Any] | None]:
    """Return a session of onnxruntime with the first sizes and inputs that it runs."""
    try:
        reference = Reference(path)
    except Exception as error:  # Errors of C++, of types that onnxruntime alone defines.
        report.add(onnxruntime=_one_line(error))
        return None, None, None
    reason = "no sizes"
    for candidate in candidates(reference.inputs, bound):
        inputs = candidate.arrays(seed=1)
        try:
            outputs = reference.run(inputs)
        except Exception as error:
            reason = _one_line(error)
            continue
        if all(array.size for array in outputs.values()):
            report.add(onnxruntime="")
            return reference, candidate, inputs
        reason = "outputs without elements"
    report.add(onnxruntime=reason)
    return None, None, None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _fallback(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Return which operators another runtime would compute, or why the file is not read then."""
    from cpembed.graph.kinds import Foreign

    try:
        graph = load_model(path, shapes or None, fallback="onnxruntime")
    except CpembedError as error:
        return {"fallback": None, "fallback_refusal": str(error)}
    foreign = [op.kind.label for op in graph.operators if isinstance(op.kind, Foreign)]
    return {"fallback": dict(Counter(foreign)), "operators": len(graph.operators)}


def _products(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many products run on which instructions, and the reasons of the others."""
    units: Counter[str] = Counter()
    portable: Counter[str] = Counter()
    for operator in document["operators"]:
        if operator["macs"] and operator["embedded_on"]:
            units[operator["embedded_on"]] += 1
        elif operator["macs"]:
            portable[operator["reason"] or ""] += 1
    return {"units": dict(units), "portable": dict(portable), "macs": document["totals"]["macs"]}


def _least_error(graph: Graph) -> float:
    has_halves = any(kind.dtype in ("float16", "bfloat16") for kind in graph.types.values())
    return _LEAST_HALF_ERROR if has_halves else _LEAST_ERROR


def comparison(
    reference: Reference,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    least: float = _LEAST_ERROR,
) -> dict[str, Any]:
    """Compare outputs with onnxruntime's, and these with its results for other last bits.

    Parameters
    ----------
    reference : Reference
    inputs, outputs : mapping of str to ndarray
    least : float
        Relative error that is right in any case.
    """
    expected = reference.run(inputs)
    variants = [reference.run(perturbed(inputs, seed)) for seed in (2, 3)]
    variants += [Reference(reference.path, seed=seed).run(inputs) for seed in (4, 5)]
    errors: dict[str, dict[str, Any]] = {}
    for name, actual in outputs.items():
        noise = max(_error(variant[name], expected[name]) for variant in variants)
        error = _error(actual, expected[name])
        right = bool(error <= max(least, _NOISE_FACTOR * noise))
        is_decided = error <= least or noise < _MOST_NOISE or not np.isfinite(error)
        errors[name] = {"error": error, "noise": noise, "right": right if is_decided else None}
    verdicts = [entry["right"] for entry in errors.values() if entry["right"] is not None]
    return {"outputs": errors, "right": all(verdicts) if verdicts else None}


def _error(actual: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest magnitude; infinite for other shapes.

    Of integers and Booleans it is the share of elements that differ.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if not actual.size:
        return 0.0
    if actual.dtype.kind in "iub" and actual.dtype.itemsize != 1:
        return float(np.mean(actual != expected))
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    largest = np.abs(b[finite]).max(initial=0.0)
    distance = np.abs(a - b)[finite].max(initial=0.0)
    return 0.0 if distance <= _LEAST_DIFFERENCE else float(distance / (largest or 1.0))


def work(options: Any) -> None:
    """Check one file in this process."""
    resource.setrlimit(resource.RLIMIT_AS, (int(options.memory * 2**30),) * 2)
    report = Report(options.worker)
    path = Path(options.folder)
    sizes = json.loads(os.environ.get(_SIZES, "{}"))
    try:
        check_file(path, sizes, options, report)
    except Exception as error:  # A bug of cpembed's, which is a result as well.
        report.add(bug=f"{type(error).__name__}: {_one_line(error)}")
        raise


_SIZES = "MODEL_FILES_SIZES"


# -- all files ------------------------------------------------------------------------------------


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("model_files.jsonl"))
    parser.add_argument("--read-only", action="store_true", help="compile nothing")
    parser.add_argument(
        "--definitions",
        action="store_true",
        help="compile nothing: compute with numpy what would be compiled",
    )
    parser.add_argument("--only", default="", help="check files with this text in their path")
    parser.add_argument("--sizes", type=Path, help="JSON with shapes by file and input")
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", type=float, default=1200.0, help="limit of a file")
    parser.add_argument("--memory", type=float, default=16.0, help="GiB, limit of a file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    # A worker has a session of its own, so that it would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = json.loads(options.sizes.read_text()) if options.sizes else {}
    results = _stored(options.output)
    mode = "definitions" if options.definitions else options.target
    mode = "read" if options.read_only else mode
    judges = _digest(Path(__file__), Path(__file__).with_name("model_inputs.py"))
    rows: list[dict[str, Any]] = []
    paths = sorted(options.folder.rglob("*.onnx"), key=lambda path: (path.stat().st_size, path))
    for path in paths:
        name = path.relative_to(options.folder).as_posix()
        if options.only not in name:
            continue
        key = [_digest(path), source_digest(), judges, mode]
        result, limits = results.get((name, *key)), [options.seconds, options.memory]
        # With other limits a file that exceeded them may be checked to its end.
        if result is None or (result["ended"] and result["limits"] != limits):
            result = {"file": name, "key": key, "bytes": path.stat().st_size, "limits": limits}
            result |= _checked(path, sizes.get(path.name, {}), options)
            _append(options.output, {**result, "provenance": provenance()})
        rows.append(result)
        print(f"{name}: {outcome(result)}", flush=True)
    text = "\n".join(lines(rows))
    if options.markdown:
        options.markdown.write_text(text + "\n")
    print(f"\n{text}")


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _stored(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return earlier results by file, its contents, those of the package, and the mode."""
    results: dict[tuple[str, ...], dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            # The last line is a part where the command was stopped in it.
            with suppress(ValueError):
                entry = json.loads(line)
                results[(entry["file"], *entry["key"])] = entry
    return results


def _append(path: Path, entry: Mapping[str, Any]) -> None:
    stored = path.read_bytes() if path.exists() else b""
    start = "" if not stored or stored.endswith(b"\n") else "\n"
    with path.open("a") as file:
        file.write(f"{start}{json.dumps(entry)}\n")


def _checked(path: Path, sizes: Mapping[str, Sequence[int]], options: Any) -> dict[str, Any]:
    """Check a file in a process of its own, which ends at the limits."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "benchmarks.model_files", str(path.resolve())),
            *("--worker", str(report), "--target", options.target),
            *("--memory", str(options.memory)),
            *(["--read-only"] if options.read_only else []),
            *(["--definitions"] if options.definitions else []),
        ]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, _SIZES: json.dumps(sizes)},
            start_new_session=True,
        )
        ended = ""
        try:
            _, errors = process.communicate(timeout=options.seconds)
            if process.returncode:
                last = errors.decode(errors="replace").strip().splitlines()[-1:] or [""]
                ended = f"exit code {process.returncode}: {last[0][:300]}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {options.seconds:.0f} s"
        finally:
            # Compilers that it started belong to its session.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        values = json.loads(report.read_text()) if report.exists() else {}
        return {**values, "ended": ended}


def outcome(result: Mapping[str, Any]) -> str:
    """Return the result of a file in a line."""
    if result.get("ended"):
        return f"{result['ended']} (step {result.get('step', 'start')})"
    if not result.get("read"):
        return f"not read: {result.get('refusal', '')}"
    right = {True: "right", False: "WRONG", None: "not compared"}[result.get("right")]
    if "compiled" not in result:
        return f"read, {result['operators']} operators, {right}"
    if not result["compiled"]:
        return f"not compiled: {result['refusal']}"
    portable = sum(result["portable"].values())
    units = ", ".join(f"{count} {unit}" for unit, count in result["units"].items())
    return f"{right}; products: {units or 'none'}, {portable} in portable code"


def lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of all results, what was not read with its reasons, and the totals."""
    read = [result for result in results if result.get("read")]
    compared = [result for result in results if result.get("right") is not None]
    right = [result for result in compared if result["right"] and not result.get("differing")]
    rows = [_row(result) for result in results]
    counts = f"{len(results)} files: {len(read)} read, {len(compared)} compared with onnxruntime"
    text = [
        f"{counts}, {len(right)} right.",
        "",
        *table(["file", "MB", "read s", "compile s", "error", "operators", "products"], rows),
        "",
    ]
    for result in results:
        if not result.get("read") or result.get("compiled") is False or result.get("ended"):
            text.append(f"- {result['file']}: {outcome(result)}")
            if fallback := result.get("fallback"):
                counts = ", ".join(f"{count} {name}" for name, count in fallback.items())
                text.append(f"  - with `--fallback onnxruntime`: {counts} run there")
            elif refusal := result.get("fallback_refusal"):
                text.append(f"  - with `--fallback onnxruntime`: {refusal}")
    for result in results:
        for reason, count in result.get("portable", {}).items():
            text.append(f"- {result['file']}: {count} products in portable code: {reason}")
    return [*text, "", *provenance_lines(provenance(), "random inputs")]


def _row(result: Mapping[str, Any]) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    errors = [entry["error"] for entry in result.get("outputs", {}).values()]
    counts = {**result.get("units", {}), "portable": sum(result.get("portable", {}).values())}
    return [
        result["file"],
        number(result["bytes"] / 1e6, ".2f"),
        number(result.get("read_s"), ".1f") or "no",
        number(result.get("compile_s"), ".0f"),
        number(max(errors, default=None), ".1e"),
        number(result.get("operators"), "d"),
        ", ".join(f"{count} {name}" for name, count in counts.items() if count),
    ]


if __name__ == "__main__":
    main()

"""Measure the gain of Winograd's method and im2col over an entire network of float32.

    python -m benchmarks.network_methods MODELS --target avx512_f32 [--only resnet18_f32]

Of every ``MODELS/*_f32.onnx`` two libraries: with all methods (``auto``) and with each convolution
by its own sums (``implicit``), and further ones of ``--methods``. They run in one process and take
turns; the ratio of a round is the time of ``implicit`` over another's, above 1 if methods are
faster, and the median of rounds is reported. Errors are root mean squares of the outputs against
the model evaluated in float64, relative to the root mean square of the outputs. Writes
``network_methods.json`` and ``network_methods.md`` into ``--output``, after every network.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.documents import Document, Row
from benchmarks.interleaved import turns
from benchmarks.network_comparison import (
    Comparison,
    comparison_parser,
    heading,
    median_us,
)
from cpembed.driver.options import METHODS, MethodName
from cpembed.frontends import load_model
from cpembed.graph.graph import Array, Graph
from cpembed.graph.kinds import Product
from cpembed.network.build import CompiledNetwork, compile_network
from cpembed.network.inputs import random_inputs
from cpembed.network.method_error import defined_in_float64
from cpembed.network.plan import Planning


def main() -> None:
    """Run the command."""
    parser = comparison_parser(__doc__ or "", "avx512_f32")
    parser.add_argument("--methods", nargs="*", default=["implicit", "auto"], choices=METHODS)
    parser.add_argument("--pattern", default="*_f32.onnx", help="names of the models")
    options = parser.parse_args()
    methods: list[MethodName] = list(dict.fromkeys(["implicit", *options.methods]))
    libraries = _Libraries(options.target, options.measure, options.rounds, options.round_ms)
    comparison = Comparison(
        "network_methods",
        lambda path: libraries.row(path, methods),
        line,
        markdown,
        {"methods": methods},
    )
    comparison.run(options, options.pattern)


@dataclass(frozen=True)
class _Libraries:
    """Libraries of a network, one per method."""

    target: str
    measures: bool
    rounds: int
    round_ms: float

    def row(self, path: Path, methods: Sequence[MethodName]) -> Row:
        """Measure the network by each method."""
        graph = load_model(path)
        inputs = random_inputs(graph, 0)
        with tempfile.TemporaryDirectory() as folder:
            networks = {
                method: compile_network(
                    graph,
                    self.target,
                    Path(folder) / method,
                    Planning(method=method, measures=self.measures),
                    name=method,
                )
                for method in methods
            }
            running = {method: network.open() for method, network in networks.items()}
            outputs = {method: network.run(inputs) for method, network in running.items()}
            arguments = {method: network.in_order(inputs) for method, network in running.items()}
            times = turns(running, arguments, self.rounds, self.round_ms)
            for network in running.values():
                network.close()
        base = times["implicit"]
        exact = _evaluated(networks["implicit"].graph, inputs)
        return {
            "network": path.stem,
            "us": median_us(times),
            "ratio": {
                method: statistics.median(a / b for a, b in zip(base, seconds, strict=True))
                for method, seconds in times.items()
            },
            "predicted_us": {m: n.plan.assignment.cost for m, n in networks.items()},
            "products": {method: _products(network) for method, network in networks.items()},
            "error": {method: _error(results, exact) for method, results in outputs.items()},
            "bytes_weights": {method: _weights(network) for method, network in networks.items()},
        }


def _products(network: CompiledNetwork) -> dict[str, int]:
    """Return the number of products by method."""
    executions = (e for e in network.plan.executions.values() if e.kernel is not None)
    return dict(Counter("implicit" if e.method is None else e.method.name for e in executions))


def _weights(network: CompiledNetwork) -> int:
    constants = (b for b in network.network.program.buffers if b.data is not None)
    return sum(buffer.bytes for buffer in constants)


def _evaluated(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """Return the outputs of a network whose products of floats are summed in float64."""
    values: dict[str, Array] = {**graph.constants, **inputs}
    for operator in graph.operators:
        arrays = [values[name] for name in operator.inputs]
        kind = operator.kind
        if isinstance(kind, Product) and kind.computation.output.dtype == "float32":
            results = (defined_in_float64(kind, arrays),)
        else:
            results = kind.evaluate(arrays)
        values |= zip(operator.outputs, results, strict=True)
    return {name: values[name] for name in graph.outputs}


def _error(results: dict[str, Array], exact: dict[str, Array]) -> float:
    """Return the root mean square of the outputs' errors, relative to that of the outputs."""
    differences = np.concatenate([(results[name] - exact[name]).reshape(-1) for name in exact])
    outputs = np.concatenate([array.reshape(-1) for array in exact.values()])
    return float(np.sqrt((differences.astype(np.float64) ** 2).mean() / (outputs**2).mean()))


def line(row: Row) -> str:
    """Return a row as a line."""
    ratios = [f"{m} x{r:.3f}" for m, r in row["ratio"].items() if m != "implicit"]
    return f"{row['network']:28} {row['us']['implicit']:9.0f} us  {'  '.join(ratios)}"


def markdown(document: Document) -> str:
    """Return the page."""
    methods = [method for method in document["methods"] if method != "implicit"]
    lines = heading("Methods of convolutions in networks of float32, measured", document)
    lines += ["", "Above 1, methods are faster than each convolution's own sums.", ""]
    names = "".join(f" {method} | products |" for method in methods)
    lines += [f"| network | implicit us |{names} error | of sums |"]
    lines += ["| --- | ---: |" + " ---: | --- |" * len(methods) + " ---: | ---: |"]
    for row in document["rows"]:
        text = f"| {row['network']} | {row['us']['implicit']:.0f} |"
        for method in methods:
            counts = ", ".join(f"{n} {m}" for m, n in sorted(row["products"][method].items()))
            text += f" {row['ratio'][method]:.3f} | {counts} |"
        worst = max(row["error"][method] for method in document["methods"])
        lines.append(f"{text} {worst:.1e} | {row['error']['implicit']:.1e} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()

"""Kernels that ACT publishes, planned, proven and emulated on accelerators.

    python -m benchmarks.act

ACT (Jain et al., arXiv 2510.09932) compiles attention on a QKV unit, softmax, products of matrices
on Gemmini and element-wise chains. Each kernel is a specification of several statements; statements
of one program hand their results on inside of the machine. Every program is proven against its
statements and executed by the generated executor; the results are compared with numpy's.

Bytes are those that the executor counted to and from main memory. The compulsory ones are those of
the kernel's inputs and outputs, each once, and those of results that cannot stay on chip
(``cpembed.accelerator.operator_search``): where both are equal, no program moves fewer. Seconds are
of the first attempt in one process.

Writes ``act.json`` and ``act.md`` into ``--output``, by default beside this file.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import write_document
from cpembed.accelerator.executor import Run, execute
from cpembed.accelerator.operator_search import OperatorSearch, Plans, compulsory_bytes
from cpembed.accelerator.proof import prove
from cpembed.accelerator.specification import Specification, Statement
from cpembed.files import write_whole
from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import load_instruction_set
from cpembed.ir.dtypes import is_integer
from cpembed.ir.parser import parse_computation
from cpembed.ir.reference import random_array
from cpembed.runtime.measurement.environment import provenance, provenance_lines

FOLDER = Path(__file__).resolve().parent
# Programs add in another order than numpy.
RELATIVE = 2e-5


@dataclass(frozen=True)
class Kernel:
    """A kernel on a machine.

    Attributes
    ----------
    dtypes : mapping of str to str
        Names of tensors, a letter each, by element type.
    extents : mapping of str to int
        Extent of each axis.
    inputs, outputs : str
        Names of the tensors in main memory, a letter each.
    """

    name: str
    target: str
    dtypes: Mapping[str, str]
    extents: Mapping[str, int]
    inputs: str
    outputs: str
    statements: tuple[str, ...]

    def specification(self) -> Specification:
        """Return the statements over the kernel's tensors."""
        dtypes = {name: dtype for dtype, names in self.dtypes.items() for name in names}
        return Specification(
            self.name,
            tuple(self._statement(text, dtypes) for text in self.statements),
            tuple(self.inputs),
            tuple(self.outputs),
            {},
        )

    def _statement(self, text: str, dtypes: Mapping[str, str]) -> Statement:
        tensors = set(re.findall(r"(\w+)\[", text))
        axes = set(re.findall(r"\w+", " ".join(re.findall(r"\[(.*?)\]", text))))
        computation = parse_computation(
            text,
            {axis: extent for axis, extent in self.extents.items() if axis in axes},
            dtypes={name: dtype for name, dtype in dtypes.items() if name in tensors},
        )
        # Sums of a tensor that an earlier statement began go on from there.
        output = computation.output.tensor
        earlier = self.statements[: self.statements.index(text)]
        return Statement(computation, any(line.startswith(f"{output}[") for line in earlier))


MATRIX = dict.fromkeys("ijkl", 64)
ROWS = {"i": 512, "j": 64}
BYTES = {"int8": "ABCDEFYQKVR", "int32": "STUZ", "float32": "XMGHP"}
FLOATS = {"float32": "ABXMEPTYGH"}
HALVES = {"bfloat16": "QKVSEPTZY"}

CHAIN = (
    "S[i,j] += A[i,k] * B[k,j]",
    "E[i,j] = int8(S[i,j] * 0.0009765625)",
    "T[i,k] += E[i,j] * C[j,k]",
    "F[i,k] = int8(T[i,k] * 0.0009765625)",
    "U[i,l] += F[i,k] * D[k,l]",
    "Y[i,l] = int8(U[i,l] * 0.0009765625)",
)
SOFTMAX = ("E[i,j] = exp(X[i,j])", "T[i] += E[i,j]", "Y[i,j] = E[i,j] / T[i]")
STABLE_SOFTMAX = ("M[i] max= X[i,j]", "E[i,j] = exp(X[i,j] - M[i])", *SOFTMAX[1:])
# Scores of random bytes are then about 1, so that no exponential overflows.
SCALED = "X[i,j] = S[i,j] * 0.000030517578125"
SCORES = ("S[i,j] += Q[i,l] * K[j,l]", SCALED)
# The same with keys whose columns are transposed in main memory.
KEY_COLUMNS = ("S[i,j] += Q[i,l] * K[l,j]", SCALED)
QUANTIZED = (
    "P[i,j] = H[i,j] / G[i]",
    "R[i,j] = int8(P[i,j] * 127.0)",
    "Z[i,l] += R[i,j] * V[j,l]",
    "Y[i,l] = int8(Z[i,l] * 0.0078125)",
)
HALF_SOFTMAX = ("E[i,j] = exp(S[i,j])", "T[i] += E[i,j]", "P[i,j] = E[i,j] / T[i]")


def kernels() -> list[Kernel]:
    """Return all kernels."""
    unit = "qkv_attention"
    rows = {**MATRIX, "i": 512}
    product = ("Y[i,j] += Q[i,l] * K[l,j]",)
    scores = "S[i,j] += Q[i,l] * K[j,l]"
    listed = [
        Kernel("product 64x64x64", unit, HALVES, MATRIX, "QK", "Y", product),
        Kernel("product 512x64x64", unit, HALVES, rows, "QK", "Y", product),
        Kernel(
            "QKV 64x64", unit, HALVES, MATRIX, "QKV", "Y",
            (scores, *HALF_SOFTMAX, "Y[i,l] += P[i,j] * V[j,l]"),
        ),
        Kernel(
            "QKV 64x64, no softmax", unit, HALVES, MATRIX, "QKV", "Y",
            (scores, "Y[i,l] += S[i,j] * V[j,l]"),
        ),
        Kernel(
            "softmax 64x64", unit, HALVES, MATRIX, "S", "P", HALF_SOFTMAX,
        ),
    ]  # fmt: skip
    for target in ("gemmini", "tpu_like"):
        listed += [
            Kernel("A·B", target, BYTES, MATRIX, "AB", "E", CHAIN[:2]),
            Kernel("A·B·C", target, BYTES, MATRIX, "ABC", "F", CHAIN[:4]),
            Kernel("A·B·C·D", target, BYTES, MATRIX, "ABCD", "Y", CHAIN),
        ]
    relu = {
        "gemmini": "Y[i,j] = int8(max(S[i,j], 0) * 0.0009765625)",
        "tpu_like": "Y[i,j] = int8(max(S[i,j] * 0.0009765625, 0))",
    }
    for target, text in relu.items():
        listed.append(Kernel("relu(A·B)", target, BYTES, MATRIX, "AB", "Y", (CHAIN[0], text)))
    added = (
        "S[i,j] = int8(A[i,j] * 0.5)",
        "S[i,j] += int8(B[i,j] * 0.25)",
        "Y[i,j] = int8(S[i,j] * 1.0)",
    )
    scaled = (
        "E[i,j] = int8(A[i,j] * 0.5 + B[i,j] * 0.25)",
        "Y[i,j] = int8(max(E[i,j] * 0.5 + C[i,j] * 0.5, 0))",
    )
    chained = (
        "G[i,j] = A[i,j] + B[i,j]", "H[i,j] = G[i,j] * X[i,j]", "Y[i,j] = max(H[i,j], 0.0)",
    )  # fmt: skip
    exponentials = ("H[i,j] = exp(X[i,j])", "G[i] += H[i,j]")
    stable = ("M[i] max= X[i,j]", "H[i,j] = exp(X[i,j] - M[i])", "G[i] += H[i,j]")
    tpu = "tpu_like"
    return [
        *listed,
        Kernel("0.5A + 0.25B", "gemmini", BYTES, MATRIX, "AB", "Y", added),
        Kernel("two scaled sums, relu", tpu, BYTES, MATRIX, "ABC", "Y", scaled),
        Kernel("relu((A + B)X) 512x64", tpu, FLOATS, ROWS, "ABX", "Y", chained),
        Kernel("softmax 512x64", tpu, FLOATS, ROWS, "X", "Y", SOFTMAX),
        Kernel("softmax 512x64, maximum subtracted", tpu, FLOATS, ROWS, "X", "Y", STABLE_SOFTMAX),
        Kernel(
            "QKV 64x64", tpu, BYTES, MATRIX, "QKV", "Y", (*SCORES, *exponentials, *QUANTIZED)
        ),
        Kernel(
            "QKV 64x64, maximum subtracted", tpu, BYTES, MATRIX, "QKV", "Y",
            (*SCORES, *stable, *QUANTIZED),
        ),
        Kernel(
            "QKV 64x64, keys transposed ahead", tpu, BYTES, MATRIX, "QKV", "Y",
            (*KEY_COLUMNS, *exponentials, *QUANTIZED),
        ),
        Kernel(
            "QKV 64x64, maximum subtracted, keys transposed ahead", tpu, BYTES, MATRIX, "QKV", "Y",
            (*KEY_COLUMNS, *stable, *QUANTIZED),
        ),
    ]  # fmt: skip


def random_arrays(specification: Specification, seed: int) -> dict[str, NDArray[Any]]:
    """Return random inputs: integers of the full range, floats between -1 and 1."""
    generator = np.random.default_rng(seed)
    operands = [specification.operands[name] for name in specification.inputs]
    return {o.name: random_array(o.dtype, o.shape, generator) for o in operands}


def emulate(
    plans: Plans, arrays: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[Run]]:
    """Execute the programs after each other, and return all tensors in main memory."""
    contents = dict(arrays)
    runs: list[Run] = []
    for plan in plans:
        program = plan.program()
        buffers = {n: tensor.buffer(contents.get(n)) for n, tensor in program.tensors.items()}
        runs.append(execute(program, buffers, 0))
        for name in plan.problem.specification.outputs:
            contents[name] = program.tensors[name].array(runs[-1].buffers[name])
    return contents, runs


def largest_error(
    specification: Specification,
    arrays: Mapping[str, NDArray[Any]],
    contents: Mapping[str, NDArray[Any]],
) -> tuple[float, float]:
    """Return the largest difference of an output from numpy's, and its tolerance.

    Parameters
    ----------
    specification : Specification
        Statements that numpy evaluates.
    arrays : mapping of str to array
        Inputs and constants.
    contents : mapping of str to array
        Outputs of the program.
    """
    expected = specification.evaluate(arrays)
    error = tolerance = 0.0
    for name in specification.outputs:
        right = expected[name].astype(np.float64)
        difference = contents[name].astype(np.float64) - right
        # A result that is no number differs from every number.
        error = max(error, float(np.nan_to_num(np.abs(difference), nan=np.inf).max(initial=0.0)))
        if not is_integer(specification.operands[name].dtype):
            tolerance = max(tolerance, RELATIVE * float(np.abs(right).max(initial=0.0)))
    return error, tolerance


def main_bytes(machine: InstructionSet, runs: list[Run]) -> int:
    """Return the bytes that programs moved to and from main memory."""
    return sum(
        count
        for run in runs
        for (memory, _), count in run.moved.items()
        if memory == machine.main.name
    )


def measured(kernel: Kernel) -> dict[str, Any]:
    """Return the figures of one kernel."""
    machine = load_instruction_set(kernel.target)
    specification = kernel.specification()
    start, start_cpu = time.perf_counter(), time.process_time()
    search = OperatorSearch(specification, machine, "bytes")
    plans = search.plans()
    planning = time.perf_counter() - start
    processor = time.process_time() - start_cpu
    row: dict[str, Any] = {"kernel": kernel.name, "target": machine.name}
    row |= {"statements": len(specification.statements), "planning_seconds": round(planning, 2)}
    row["planning_processor_seconds"] = round(processor, 2)
    row["compulsory_bytes"] = compulsory_bytes(specification, search.matchings, machine)
    row["crossing"] = sorted(search.crossings)
    if isinstance(plans, str):
        return {**row, "planned": False, "reason": plans}
    start = time.perf_counter()
    proofs = [prove(plan.program()) for plan in plans]
    row["proof_seconds"] = round(time.perf_counter() - start, 2)
    arrays = random_arrays(specification, 1)
    contents, runs = emulate(plans, arrays)
    error, tolerance = largest_error(specification, arrays, contents)
    moved = main_bytes(machine, runs)
    return {
        **row,
        "planned": True,
        "programs": [[str(m.instruction.name) for m in p.problem.matches] for p in plans],
        "proven": all(proof.holds for proof in proofs),
        "refusals": [proof.refusal for proof in proofs if not proof.holds],
        "bytes": moved,
        "minimal": moved == row["compulsory_bytes"],
        "cycles": math.fsum(run.cycles for run in runs),
        # Results that are all alike would be equal for the wrong reasons.
        "distinct_results": min(len(np.unique(contents[n])) for n in specification.outputs),
        "error": error,
        "tolerance": tolerance,
        "verified": error <= tolerance,
    }


COLUMNS = (
    "kernel", "machine", "statements", "programs", "planning s", "of processor", "proof s", "bytes",
    "compulsory", "moves", "proven", "result", "cycles",
)  # fmt: skip
NOTE = """Bytes and cycles are emulated. The compulsory bytes are those of inputs and outputs once
each, and twice those of results that no instructions carry on chip from where they are written to
where they are read, such as bytes from Gemmini's accumulator to its scratchpad: every program that
computes each statement by an instruction that matches it moves them. Moves are *minimal* where the
bytes equal the compulsory ones; otherwise the ratio is given, which is no statement about what the
machine could do. Seconds of planning are wall clock, on a machine that may have had other work,
and of the processor.
"""


def page(rows: list[dict[str, Any]], lines: list[str]) -> str:
    """Return the page of results."""
    text = ["# Kernels of ACT on accelerators", "", *lines, "", NOTE]
    text += [f"| {' | '.join(COLUMNS)} |", "| --- " * 2 + "| --: " * 7 + "| --- " * 3 + "| --: |"]
    text += [f"| {' | '.join(cells(row))} |" for row in rows]
    reasons = [r for r in rows if not r["planned"] or r["refusals"]]
    if reasons:
        text += ["", "Not planned, or not proven:", ""]
    for row in reasons:
        why = row["reason"] if not row["planned"] else "; ".join(row["refusals"])
        text.append(f"- {row['kernel']} on {row['target']}: {why}")
    return "\n".join(text) + "\n"


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a kernel on a machine."""
    first = [row["kernel"], row["target"], str(row["statements"])]
    compulsory = f"{row['compulsory_bytes']:,}"
    planning = [f"{row[f'planning_{kind}seconds']:.2f}" for kind in ("", "processor_")]
    if not row["planned"]:
        return [*first, "none", *planning, "", "", compulsory, "not planned", "", "", ""]
    result = "differs"
    if row["verified"]:
        result = f"within {row['tolerance']:.1g}" if row["tolerance"] else "equal"
    ratio = f"{row['bytes'] / row['compulsory_bytes']:.2f} times"
    return [
        *first,
        str(len(row["programs"])),
        *planning,
        f"{row['proof_seconds']:.2f}",
        f"{row['bytes']:,}",
        compulsory,
        "minimal" if row["minimal"] else ratio,
        "yes" if row["proven"] else "no",
        result,
        f"{row['cycles']:,.0f}",
    ]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.act", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kernel in kernels():
        print(f"{kernel.name} on {kernel.target}", flush=True)
        rows.append(measured(kernel))
    document = {**provenance(), "rows": rows}
    write_document(options.output / "act.json", document)
    lines = provenance_lines(document, "emulated")
    write_whole(options.output / "act.md", page(rows, lines))


if __name__ == "__main__":
    main()

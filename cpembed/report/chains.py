"""Reports of chains: pairs of embeddings, kernels of them, and the time of kernels apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cpembed.blocks import Block, Header, Heading, Table
from cpembed.wording import data_size, duration

if TYPE_CHECKING:
    from cpembed.driver.chains import ChainResult, ChainRun

Row = tuple[str, str]


def chain_report(result: ChainResult) -> Iterator[Block]:
    """Yield the chain, what became of the pairs of its embeddings, and the kernels."""
    yield Header(_request_rows(result))
    yield ""
    yield from _pairs(result)
    choice = result.choice
    if choice.unavailable:
        yield ""
        yield f"no kernel: {choice.unavailable}"
        return
    yield ""
    yield Heading("Kernels by estimated time")
    yield Table(
        ("first product", "second product", "between", "time>", "bound by", "schedule"),
        (
            (*c.mappings, c.via, duration(c.estimated_us), c.bound_by, c.schedule)
            for c in choice.candidates
        ),
    )


def chain_run_report(run: ChainRun) -> Iterator[Block]:
    """Yield the chain, the kernel that was executed, and its verification."""
    result, candidate = run.solved, run.candidate
    rows = _request_rows(result)
    fused = candidate is not result.choice.unfused
    rows.append(("kernels", "one for the chain" if fused else "one for each product"))
    for number, mapping in enumerate(candidate.mappings):
        rows.append((("first", "second")[number], f"{mapping}, {candidate.identifiers[number]}"))
    rows.append(("schedule", candidate.schedule))
    accuracy = "bit for bit equal to the reference"
    if run.tolerance:
        accuracy = f"largest error {run.error:.3g} of the largest result, {run.tolerance:g} allowed"
    rows.append(("verified", f"yes, {run.provenance}, {accuracy} (seed {run.seed})"))
    rows += run.rows
    yield Header(rows)


def _request_rows(result: ChainResult) -> list[Row]:
    chain, choice = result.chain, result.choice
    sizes = "   ".join(
        f"{name} {dtype}[{', '.join(map(str, shape))}]"
        for name, (shape, dtype) in chain.inputs.items()
    )
    rows = [
        ("chain", chain.name),
        ("products", str(chain.first)),
        ("", str(chain.second)),
        ("inputs", sizes),
        (result.target.name, str(result.target.instruction.computation)),
    ]
    if choice.candidates or choice.unfused is not None:
        rows += _time_rows(result)
    return rows


def _time_rows(result: ChainResult) -> list[Row]:
    choice = result.choice
    fused = ("fused", f"no kernel: {choice.unavailable}")
    if choice.candidates:
        us = duration(choice.candidates[0].estimated_us)
        verdict = ": faster than apart" if choice.fuses else ": slower than apart"
        verdict *= choice.unfused is not None
        fused = ("fused", f"{us} on {choice.machine}, estimated{verdict}")
    if choice.unfused is None:
        return [fused, ("apart", "no kernels: the operand between the products is too large")]
    parts = " + ".join(duration(us) for us in choice.apart_us.values())
    return [
        fused,
        ("apart", f"{duration(choice.unfused.estimated_us)} ({parts}), estimated"),
        ("saved", f"{data_size(choice.stored_bytes)} of the operand between the products"),
    ]


def _pairs(result: ChainResult) -> Iterator[Block]:
    """Yield what became of the pairs of embeddings."""
    choice = result.choice
    first, second = choice.embeddings
    yield Heading(f"{first * second:,} pairs of {first:,} and {second:,} embeddings")
    yield Table(
        ("pairs>", "operand between", "kernels", "reason"),
        (
            (f"{c.pairs:,}", c.outcome, "yes" if c.kernels else "no", c.reason or choice.coupling)
            for c in choice.counts
        ),
    )

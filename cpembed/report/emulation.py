"""Report of ``cpembed emulate``: executions, bytes, cycles by unit, energy by level."""

from __future__ import annotations

from collections.abc import Iterator

from cpembed.accelerator.emulation import Comparison, Emulation
from cpembed.accelerator.energy import energy_table
from cpembed.blocks import Block, Header, Heading, Table
from cpembed.provenance import Provenance
from cpembed.report.accelerator import energy_rows


def report(result: Emulation) -> Iterator[Block]:
    """Yield what ran and was compared, then a table of instructions, units and memories each."""
    run, machine = result.run, result.program.machine
    time = f"{run.cycles / machine.clock_mhz:,.1f} us at {machine.clock_mhz:,g} MHz"
    rows = [
        ("program", f"{result.program.name} on {machine.name}, {machine.synchronization}"),
        ("cycles", f"{run.cycles:,.0f}, {Provenance.EMULATED}; {time}"),
        *energy_rows(run.energy, energy_table(machine).sources),
    ]
    if run.saturations:
        rows.append(("saturated", f"{run.saturations:,} steps of sums"))
    if result.comparison is not None:
        rows.append(("compared", _comparison_text(result.comparison)))
    yield Header(rows)
    yield ""
    yield Heading("Units")
    yield Table(
        ["unit", "busy cycles>", "share>"],
        [
            (unit, f"{busy:,.0f}", f"{busy / run.cycles:.1%}" if run.cycles else "-")
            for unit, busy in run.unit_cycles.items()
        ],
    )
    yield ""
    yield Heading("Instructions")
    yield Table(
        ["instruction", "executions>"],
        [(name, f"{count:,}") for name, count in run.executions.items() if count],
    )
    yield ""
    yield Heading("Memories")
    yield Table(
        ["memory", "bytes read>", "bytes written>", "energy nJ>", "path busy cycles>"],
        [
            (
                name,
                f"{run.moved[name, 'read']:,}",
                f"{run.moved[name, 'write']:,}",
                f"{run.energy[name] / 1e3:,.1f}",
                f"{run.memory_cycles[name]:,.0f}" if name in run.memory_cycles else "-",
            )
            for name in machine.memories
            if run.moved[name, "read"] or run.moved[name, "write"]
        ],
    )


def _comparison_text(comparison: Comparison) -> str:
    if comparison.differences:
        return (
            f"{comparison.differences:,} of {comparison.elements:,} elements of "
            f"{comparison.output} differ from {comparison.expression}"
        )
    exact = (
        "bit for bit equal to"
        if not comparison.largest_error
        else (f"within rounding ({comparison.largest_error:.3g}) of")
    )
    return f"{comparison.output}, {comparison.elements:,} elements: {exact} {comparison.expression}"

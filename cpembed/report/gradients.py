"""Reports of gradients whose phases have kernels of their own."""

from __future__ import annotations

from collections.abc import Iterator

from cpembed.blocks import Block, Header, Table
from cpembed.driver.gradients import GradientRun
from cpembed.wording import count, plural


def gradient_report(result: GradientRun) -> Iterator[Block]:
    """Yield a row for each phase, and the totals."""
    gradient = result.gradient
    yield Table(
        ("phase", "MACs>", "estimated>", "embedding"),
        (
            (
                ",".join(map(str, phase)),
                count(gradient.parts[phase][0].macs),
                f"{selection.choice.estimated or 0.0:.3g} us",
                "   ".join(selection.ranked.embedding.axis_texts),
            )
            for phase, selection in result.selections.items()
        ),
    )
    yield ""
    shape = " x ".join(map(str, gradient.shape))
    error = result.verification.max_error
    accuracy = f"largest error {error:.3g}" if error else "bit-exact"
    phases = plural(len(result.selections), "phase")
    yield Header(
        [
            ("gradient", f"{phases} in one tensor of {shape}, one kernel after the other"),
            ("target", result.target.name),
            (
                "estimated",
                f"{result.estimated_us:.3g} us, packing included, but for what is packed ahead",
            ),
            ("verified", f"yes, {result.provenance}, {accuracy} (seed {result.seed})"),
        ]
    )

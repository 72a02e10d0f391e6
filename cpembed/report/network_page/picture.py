"""The network as a picture, operators in layers and tensors between them; texts of the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.report.html_page import html
from cpembed.report.network_page.document import Conversion, Network, Operator, State, Tensor
from cpembed.report.network_page.layering import Placed, Point, Sizes, place
from cpembed.wording import amount, count

SIZES = Sizes(width=196, height=46, gap=24, layer_gap=48)
_MARGIN = 12.0
# Maximum number of characters of a line in a node.
_CHARACTERS = 24

SYMBOLS = {
    State.EMBEDDED: "●",
    State.ALTERNATIVE: "◆",
    State.GENERATED: "○",
    State.UNMATCHED: "✕",
}
"""Symbols in addition to the colours, for readers who cannot distinguish them."""


@dataclass(frozen=True)
class Edge:
    """A tensor from the operator that writes it to one that reads it.

    Parameters
    ----------
    source, target
        Numbers of the two operators.
    tensor
        Name of the tensor.
    first
        True for the first edge of the tensor, which has its label.
    layout
        Layout in which the tensor is read; None if unknown.
    """

    source: int
    target: int
    tensor: str
    first: bool
    layout: str | None = None

    def conversions(self, tensor: Tensor) -> tuple[Conversion, ...]:
        """Return the copies that this edge reads: on the first edge all, if readers are unknown."""
        if self.layout is None:
            return tensor.conversions if self.first else ()
        return tuple(c for c in tensor.conversions if c.to == self.layout != tensor.layout)


def edges(network: Network) -> list[Edge]:
    """Return an edge for each tensor and reader, in the order of the readers."""
    writer: dict[str, int] = {}
    by_ends: dict[tuple[int, int, str], Edge] = {}
    labelled: set[str] = set()
    for number, operator in enumerate(network.operators):
        for position, name in enumerate(operator.inputs):
            source = writer.get(name)
            # An input of the network has no writer; an operator that reads a tensor twice has one
            # edge.
            if source is None or (source, number, name) in by_ends:
                continue
            layout = operator.reads_as(position)
            is_first = name not in labelled
            by_ends[source, number, name] = Edge(source, number, name, is_first, layout)
            labelled.add(name)
        for name in operator.outputs:
            # Operators are in the order of execution: only later ones read this.
            writer.setdefault(name, number)
    return list(by_ends.values())


def picture(network: Network) -> str:
    """Return an SVG element whose nodes link to the cards of their operators."""
    between = edges(network)
    placed = place(len(network.operators), [(edge.source, edge.target) for edge in between], SIZES)
    width, height = placed.width + 2 * _MARGIN, placed.height + 2 * _MARGIN
    longest = max((operator.amount or 0.0 for operator in network.operators), default=0.0)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    label = "The network: operators from the inputs down to the outputs"
    parts = [
        f'<svg id="picture" role="group" aria-label="{label}" {size}>',
        f'<g transform="translate({_MARGIN:g} {_MARGIN:g})">',
        '<g class="edges">',
        *_edges(network, between, placed),
        "</g>",
        *(
            _node(network, number, operator, placed.centres[number], longest)
            for number, operator in enumerate(network.operators)
        ),
        "</g></svg>",
    ]
    return "\n".join(parts)


def _node(network: Network, number: int, operator: Operator, centre: Point, longest: float) -> str:
    state = network.state(operator)
    x, y = centre[0] - SIZES.width / 2, centre[1] - SIZES.height / 2
    took = time(operator.amount, network.unit)
    detail = short(operator.label or operator.kind, _CHARACTERS - 10)
    bar = (SIZES.width - 8) * (operator.amount or 0.0) / longest if longest else 0.0
    title = f"{operator.name}, {operator.label or operator.kind}, {state.value}, {took}"
    symbol = f'<tspan class="symbol">{SYMBOLS[state]}</tspan>'
    inner = [
        f"<title>{html(title)}</title>",
        f'<rect class="body" width="{SIZES.width:g}" height="{SIZES.height:g}" rx="6"/>',
        f'<text x="10" y="17">{symbol} {html(short(operator.name, _CHARACTERS - 2))}</text>',
        f'<text class="dim" x="10" y="33">{html(detail)}</text>',
        f'<text class="dim end" x="{SIZES.width - 8:g}" y="33">{html(took)}</text>',
        f'<rect class="bar" x="4" y="{SIZES.height - 7:g}" width="{bar:.1f}" height="4" rx="2"/>',
    ]
    return (
        f'<a class="node {state.value}" href="#op-{number}" data-op="{number}" '
        f'transform="translate({x:.1f} {y:.1f})">{"".join(inner)}</a>'
    )


def _edges(network: Network, between: list[Edge], placed: Placed) -> Iterator[str]:
    for edge, points in zip(between, placed.paths, strict=True):
        title = html(f"{edge.tensor}: {describe(network.tensor(edge.tensor))}")
        yield (
            f'<path d="{_path(points)}" data-from="{edge.source}" data-to="{edge.target}">'
            f"<title>{title}</title></path>"
        )
    # Labels come last, so that no edge is drawn over them.
    for edge, points in zip(between, placed.paths, strict=True):
        yield from _labels(edge, network.tensor(edge.tensor), points)


def _path(points: tuple[Point, ...]) -> str:
    """Return curves that leave and enter each point vertically."""
    half = SIZES.height / 2
    (x, above), *rest = points
    text = [f"M{x:.1f} {above + half:.1f}"]
    for number, (to_x, below) in enumerate(rest):
        start, end = above + half, below - half
        bend = (start + end) / 2
        text.append(f"C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {end:.1f}")
        if number < len(rest) - 1:
            # A straight line past the nodes of this layer.
            text.append(f"V{below + half:.1f}")
        x, above = to_x, below
    return "".join(text)


def _labels(edge: Edge, tensor: Tensor, points: tuple[Point, ...]) -> Iterator[str]:
    """Yield the layout next to the start of a tensor's first edge, and a mark for each copy."""
    x, y = points[0][0] + 6, points[0][1] + SIZES.height / 2 + 12
    if not edge.first:
        # On later edges above the reader: the start of all edges of a tensor is one point.
        x, y = points[-1][0] + 6, points[-1][1] - SIZES.height / 2 - 16
    if tensor.layout and edge.first:
        layout = html(short(tensor.layout, 26))
        yield f'<text class="layout" x="{x:.1f}" y="{y:.1f}">{layout}</text>'
    for number, conversion in enumerate(edge.conversions(tensor)):
        at = y + 12 * (number + 1)
        label = f"{short(conversion.to, 16)} {time(conversion.us)}"
        copied = f"{edge.tensor} is copied to {conversion.to} in {time(conversion.us)}"
        yield (
            f'<g class="conversion"><title>{html(copied)}</title>'
            f'<path d="M{x - 6:.1f} {at - 7:.1f}l5 4 -5 4 -5 -4z"/>'
            f'<text x="{x + 2:.1f}" y="{at:.1f}">{html(label)}</text></g>'
        )


def describe(tensor: Tensor) -> str:
    """Return ``uint8 1x64x56x56, NHWC``."""
    sizes = "x".join(map(str, tensor.shape))
    parts = [" ".join(part for part in (tensor.dtype, sizes) if part), tensor.layout]
    return ", ".join(part for part in parts if part) or "not described"


# -- texts ----------------------------------------------------------------------------------------

UNKNOWN = "-"


def short(text: str, length: int) -> str:
    """Return at most ``length`` characters, the last ones: names of a model differ at their ends.

    >>> short("/layer1/layer1.0/conv1/Conv", 15)
    '…1.0/conv1/Conv'
    """
    return text if len(text) <= length else f"…{text[1 - length :]}"


def time(value: float | None, unit: str = "us") -> str:
    """Return a time with its unit, or a number of cycles."""
    return UNKNOWN if value is None else amount(value, unit).replace("us", "µs")


def share(part: float | None) -> str:
    """Return a share as ``12.3%``."""
    return UNKNOWN if part is None else f"{part:.1%}"


def macs(number: int | None) -> str:
    """Return a number of MACs as ``115.6 M``."""
    return count(number) if number else UNKNOWN


def yes(value: bool | None) -> str:
    """Return ``yes``, or ``NO`` where something is wrong."""
    return UNKNOWN if value is None else "yes" if value else "NO"

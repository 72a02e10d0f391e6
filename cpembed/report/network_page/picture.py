"""The network as a picture: operators in layers, tensors between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cpembed.report.network_page.document import Conversion, Network, Operator, State, Tensor
from cpembed.report.network_page.layering import Placed, Point, Sizes, place
from cpembed.report.network_page.text import html, short, time

SIZES = Sizes(width=196, height=46, gap=24, layer_gap=48)
_MARGIN = 12.0
_CHARACTERS = 24
"""Of a node's lines."""

SYMBOLS = {
    State.EMBEDDED: "●",
    State.ALTERNATIVE: "◆",
    State.GENERATED: "○",
    State.UNMATCHED: "✕",
}
"""Beside the colours, for those who do not see them apart."""


@dataclass(frozen=True)
class Edge:
    """A tensor from the operator that writes it to one that reads it, by their numbers; ``first``
    of the tensor's edges, which has its label; ``layout`` in which it is read, where that is
    known."""

    source: int
    target: int
    tensor: str
    first: bool
    layout: str | None = None

    def conversions(self, tensor: Tensor) -> tuple[Conversion, ...]:
        """The copies of the tensor that this edge takes: on the first edge all of them, where it is
        not known who reads which."""
        if self.layout is None:
            return tensor.conversions if self.first else ()
        return tuple(c for c in tensor.conversions if c.to == self.layout != tensor.layout)


def edges(network: Network) -> list[Edge]:
    """Each tensor to each reader once, in the order of the readers."""
    writer: dict[str, int] = {}
    found: dict[tuple[int, int, str], Edge] = {}
    labelled: set[str] = set()
    for number, operator in enumerate(network.operators):
        for position, name in enumerate(operator.inputs):
            source = writer.get(name)
            if source is None or (source, number, name) in found:
                continue
            found[source, number, name] = Edge(
                source, number, name, name not in labelled, operator.reads_as(position)
            )
            labelled.add(name)
        for name in operator.outputs:
            # What an operator writes is read by later ones only.
            writer.setdefault(name, number)
    return list(found.values())


def picture(network: Network) -> str:
    """An SVG element whose nodes are links to what the page says of their operators."""
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
    amount, took = operator.amount, time(operator.amount, network.unit)
    detail = short(operator.label or operator.kind, _CHARACTERS - 10)
    bar = (SIZES.width - 8) * (amount or 0.0) / longest if longest else 0.0
    words = f"{operator.name}, {operator.label or operator.kind}, {state.value}, {took}"
    symbol = f'<tspan class="symbol">{SYMBOLS[state]}</tspan>'
    inner = [
        f"<title>{html(words)}</title>",
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
    # On top of all edges.
    for edge, points in zip(between, placed.paths, strict=True):
        yield from _labels(edge, network.tensor(edge.tensor), points)


def _path(points: tuple[Point, ...]) -> str:
    """Curves that leave each point straight down."""
    half = SIZES.height / 2
    (x, above), *rest = points
    text = [f"M{x:.1f} {above + half:.1f}"]
    for number, (to_x, below) in enumerate(rest):
        start, end = above + half, below - half
        bend = (start + end) / 2
        text.append(f"C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {end:.1f}")
        if number < len(rest) - 1:
            # Past the nodes of the layer.
            text.append(f"V{below + half:.1f}")
        x, above = to_x, below
    return "".join(text)


def _labels(edge: Edge, tensor: Tensor, points: tuple[Point, ...]) -> Iterator[str]:
    """The layout beside the beginning of a tensor's first edge; where an edge takes a copy, a mark:
    below that, or above the reader."""
    x, y = points[0][0] + 6, points[0][1] + SIZES.height / 2 + 12
    if not edge.first:
        x, y = points[-1][0] + 6, points[-1][1] - SIZES.height / 2 - 16
    if tensor.layout and edge.first:
        layout = html(short(tensor.layout, 26))
        yield f'<text class="layout" x="{x:.1f}" y="{y:.1f}">{layout}</text>'
    for number, conversion in enumerate(edge.conversions(tensor)):
        at = y + 12 * (number + 1)
        words = f"{short(conversion.to, 16)} {time(conversion.us)}"
        copied = f"{edge.tensor} is copied to {conversion.to} in {time(conversion.us)}"
        yield (
            f'<g class="conversion"><title>{html(copied)}</title>'
            f'<path d="M{x - 6:.1f} {at - 7:.1f}l5 4 -5 4 -5 -4z"/>'
            f'<text x="{x + 2:.1f}" y="{at:.1f}">{html(words)}</text></g>'
        )


def describe(tensor: Tensor) -> str:
    """``uint8 1x64x56x56, NHWC``."""
    sizes = "x".join(map(str, tensor.shape))
    said = [" ".join(part for part in (tensor.dtype, sizes) if part), tensor.layout]
    return ", ".join(part for part in said if part) or "not described"

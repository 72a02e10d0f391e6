"""Tilings of an operator, and the orders of its buffers that determine their loops.

A tiling is a sequence of tile loops and, for each buffer of the main statement, its depth in them.
Let the buffers be ordered from the outermost to the innermost. Between two of them, only loops are
useful that move the inner one and not the outer one: any other loop can change places with the
buffer inside of it without more rows or more bytes. So an order of the buffers determines the
loops, and what remains are the sizes of the tiles, which are enumerated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cpembed.accelerator.template import Template
from cpembed.accelerator.tiling_grid import Key, LoopOrder, LoopSlot
from cpembed.hw.isa import Synchronization


@dataclass(frozen=True)
class Tiling:
    """Loops over tiles, and how deep in them each buffer lives.

    Attributes
    ----------
    loops : tuple of (str, int)
        Axis and size of the tile of each loop, outermost first.
    depths : mapping of Key to int
        Number of the loops outside of each buffer of the main statement.
    output_depth : int
        Number of the loops outside of the sums of the main statement, and of all other statements.
    copies : mapping of Key to int
        2 for a buffer that is filled while the one before it is in use.
    """

    loops: tuple[tuple[str, int], ...]
    depths: Mapping[Key, int]
    output_depth: int
    copies: Mapping[Key, int]


def smallest_tiling(template: Template) -> Tiling:
    """Return the tiling with the smallest tiles, whose sums are outermost of all buffers."""
    order = next(
        o for o in loop_orders(template) if o.output_depth == min(o.depths.values(), default=0)
    )
    loops = [
        (slot.axis, template.granules[slot.axis])
        for slot in order.loops
        if not slot.level and template.granules[slot.axis] < template.extents[slot.axis]
    ]
    positions = [
        n
        for n, slot in enumerate(order.loops)
        if not slot.level and template.granules[slot.axis] < template.extents[slot.axis]
    ]
    depths = {key: sum(n < depth for n in positions) for key, depth in order.depths.items()}
    return Tiling(tuple(loops), depths, sum(n < order.output_depth for n in positions), {})


def loop_orders(template: Template) -> Iterator[LoopOrder]:
    """Yield the different loop structures of all orders of the main statement's buffers."""
    inputs = [b for b in template.buffers if b.role == "main" and not b.is_home]
    output = next((b for b in template.buffers if b.role == "output"), None)
    output_axes = frozenset(template.main_step.axes.values()) - template.main_step.reductions
    chain_uses = {
        a: sum(a in b.axes for b in template.buffers if b.role == "chain") for a in output_axes
    }
    distinct_orders = set[tuple[Any, ...]]()
    for permutation in itertools.permutations([*inputs, None]):
        loops: list[LoopSlot] = []
        depths: dict[Key, int] = {}
        levels: dict[str, int] = {}
        output_depth, previous = -1, frozenset[str]()
        for node in permutation:
            axes = output_axes if node is None else node.axes
            allowed = template.spatial
            if output_depth >= 0:
                allowed = template.spatial | template.reductions
            segment = sorted((axes & allowed) - previous, key=lambda a: (-chain_uses.get(a, 0), a))
            for axis in segment:
                levels[axis] = levels.get(axis, -1) + 1
                loops.append(LoopSlot(axis, levels[axis]))
            previous = axes
            if node is None:
                output_depth = len(loops)
                if output is not None:
                    depths[output.key] = len(loops)
            else:
                depths[node.key] = len(loops)
        key = (tuple(loops), tuple(sorted(depths.items())), output_depth)
        if key not in distinct_orders:
            distinct_orders.add(key)
            yield LoopOrder(tuple(loops), depths, output_depth)


def copy_options(template: Template) -> list[dict[Key, int]]:
    """List the numbers of copies of the buffers that are compared."""
    if template.machine.synchronization is Synchronization.IN_ORDER:
        return [{}]
    moved = [b for b in template.buffers if not b.is_home]
    main = [
        b.key
        for b in moved
        if b.role == "main" or (b.role == "granule" and b.first_use == template.main)
    ]
    # A unit waits in each round for room in all of its buffers, so that one with a single copy
    # makes it wait as if no buffer had two.
    is_joint = template.machine.synchronization is Synchronization.CHANNELS
    groups: list[tuple[Key, ...]] = [tuple(main)] if is_joint and main else [(k,) for k in main]
    outputs = tuple(b.key for b in moved if b.key not in main)
    if outputs:
        groups.append(outputs)
    options: list[dict[Key, int]] = []
    for choice in itertools.product((1, 2), repeat=len(groups)):
        copies: dict[Key, int] = {}
        for keys, number in zip(groups, choice, strict=True):
            copies |= dict.fromkeys(keys, number)
        options.append(copies)
    return options

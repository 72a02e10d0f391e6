"""Interpreter of the unit: a register for a tile of each operand, and a cycle counter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpembed.ir.interpreter import interpret
from cpembed.targets.TEMPLATE.lower import Tile, Walk
from cpembed.targets.TEMPLATE.schedule import Order
from cpembed.transform.program import pack, unpack

Array = NDArray[Any]


@dataclass(eq=False)
class Unit:
    """Walk in an order, ready to run; ``cycles`` counts the last run."""

    walk: Walk
    order: Order
    cycles: int = 0
    _registers: dict[str, tuple[object, Array]] = field(
        default_factory=dict[str, "tuple[object, Array]"], repr=False
    )
    _stored: set[object] = field(default_factory=set[object], repr=False)

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Return the output for inputs, all in their original layouts."""
        walk, program = self.walk, self.walk.program
        self.cycles, self._registers, self._stored = 0, {}, set()
        memory = {
            tile.operand.name: pack(tile.operand, inputs[program.workload.operand(name).tensor])
            for tile in walk.inputs
            for name in (tile.operand.name,)
        }
        output = walk.output.operand
        memory[output.name] = np.zeros(output.shape, output.dtype)
        # The loops as the schedule orders them; which tiles move follows from the order.
        for values in itertools.product(*(range(walk.extents[n]) for n in self.order.loops)):
            self._step(dict(zip(self.order.loops, values, strict=True)), memory)
        self._store(memory)
        return unpack(output, memory[output.name], program)

    def _step(self, point: Mapping[str, int], memory: Mapping[str, Array]) -> None:
        """Execute the instruction once, after the transfers that it needs."""
        program, walk = self.walk.program, self.walk
        tiles = {tile.operand.name: self._fetched(tile, point, memory) for tile in walk.inputs}
        key = _key(walk.output, point)
        register = self._registers.get(walk.output.operand.name)
        if register is None or register[0] != key:
            self._store(memory)
            self._accumulate_from(key, point, memory)
        extents = {lane.name: lane.extent for lane in program.instruction_axes}
        instruction = program.instruction.with_extents(extents)
        operands = {role: tiles[name] for role, name in program.roles.items() if name in tiles}
        # The instruction's own computation is its definition, so it is what executes.
        products = interpret(instruction, {o.tensor: operands[o.name] for o in instruction.inputs})
        self._registers[walk.output.operand.name][1][...] += products
        self.cycles += 1

    def _fetched(self, tile: Tile, point: Mapping[str, int], memory: Mapping[str, Array]) -> Array:
        """Return the tile of an input, transferring it unless its register holds it."""
        name, key = tile.operand.name, _key(tile, point)
        register = self._registers.get(name)
        if register is None or register[0] != key:
            self.cycles += tile.cycles
            self._registers[name] = register = key, memory[name][self._places(tile, point)]
        return register[1]

    def _accumulate_from(
        self, key: object, point: Mapping[str, int], memory: Mapping[str, Array]
    ) -> None:
        """Begin sums, or continue those that were stored."""
        output = self.walk.output
        if key in self._stored:
            self.cycles += output.cycles
        places = self._places(output, point)
        self._registers[output.operand.name] = key, memory[output.operand.name][places]
        self._places_of_output = places

    def _store(self, memory: Mapping[str, Array]) -> None:
        """Store the sums, if there are any."""
        output = self.walk.output
        register = self._registers.pop(output.operand.name, None)
        if register is not None:
            self.cycles += output.cycles
            self._stored.add(register[0])
            memory[output.operand.name][self._places_of_output] = register[1]

    def _places(self, tile: Tile, point: Mapping[str, int]) -> tuple[Array, ...]:
        """Return where the elements of the instruction's operand lie in the packed operand."""
        program = self.walk.program
        role = next(role for role, name in program.roles.items() if name == tile.operand.name)
        axes = program.instruction.computation.access(role).index
        lanes = [name for index in axes for name in index.iterators]
        extents = {lane.name: lane.extent for lane in program.instruction_axes}
        grid = np.indices([extents[name] for name in lanes])
        values = {**point, **dict.fromkeys(extents, 0), **dict(zip(lanes, grid, strict=True))}
        shape = grid.shape[1:]
        places = (np.asarray(index.evaluate(values)) for index in tile.operand.access)
        return tuple(np.broadcast_to(place, shape) for place in places)


def _key(tile: Tile, point: Mapping[str, int]) -> object:
    """Return the identity of a tile: the positions of the loops that move it."""
    return tuple(sorted((name, point[name]) for name in tile.loops))

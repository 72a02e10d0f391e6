"""Costs of single operators, some of whose tensors are on chip already or stay there."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from cpembed.cost.fusion.block import Block, BlockOperator, Extents, tensor_bytes
from cpembed.cost.machine.energy import Energies, energies_or_reason
from cpembed.cost.machine.estimate import objective_cost
from cpembed.cost.machine.nest import ExecutionNest, check_one_execution
from cpembed.cost.machine.objective import Cost, Objective, Price
from cpembed.cost.machine.search import BestTilings, best_tilings
from cpembed.cost.machine.times import compute_time, memory_times
from cpembed.cost.machine.traffic import HeldTile, Tilings, cut, untiled
from cpembed.errors import SpecError, TransformError
from cpembed.hw.machine import Hierarchy, Overlapping

_BYTES = 1e-5
"""Weight of the time of transfers between schedules of equal cycles."""

_STEPS = 4
"""Number of capacities that are distinguished between one and its double."""


@dataclass(frozen=True)
class Use:
    """Cycles, bytes and energy of an operator; sums of several executions add up.

    ``inside`` are the cycles without the path to main memory, ``total`` those with it, of
    executions one after the more. Bytes are read from main memory and written to it, ``apart``
    those of tensors that are loaded or stored apart from the executions, in ``transfers``.
    """

    inside: float = 0.0
    total: float = 0.0
    read: float = 0.0
    written: float = 0.0
    read_apart: float = 0.0
    written_apart: float = 0.0
    transfers: float = 0.0
    energy: float = 0.0

    @property
    def moved(self) -> float:
        """Bytes to and from main memory."""
        return self.read + self.written + self.read_apart + self.written_apart

    def __add__(self, more: Use) -> Use:
        return Use(
            self.inside + more.inside,
            self.total + more.total,
            self.read + more.read,
            self.written + more.written,
            self.read_apart + more.read_apart,
            self.written_apart + more.written_apart,
            self.transfers + more.transfers,
            self.energy + more.energy,
        )

    def times(self, count: float) -> Use:
        """Return the use of several equal executions."""
        return Use(
            self.inside * count,
            self.total * count,
            self.read * count,
            self.written * count,
            self.read_apart * count,
            self.written_apart * count,
            self.transfers * count,
            self.energy * count,
        )


class OperatorCosts:
    """Least costs of a block's operators, of any part of them and with any tensors on chip.

    Parameters
    ----------
    block : Block
        Block with the operators.
    objective : Objective
        Quantity to minimize: cycles, bytes or energy.
    rows : int
        Limit of the work of each search (:func:`~cpembed.cost.machine.search.best_tilings`).

    Raises
    ------
    SpecError
        The machine has no energies, or the objective is not a sum over operators.
    """

    def __init__(self, block: Block, objective: Objective, rows: int) -> None:
        if objective is Objective.EDP:
            raise SpecError("edp is no sum over operators; choose cycles, bytes or energy")
        self.block, self.objective, self.rows = block, objective, rows
        self.memory = block.chip_memory
        self._uses: dict[tuple[object, ...], Use | None] = {}
        self._bounds: dict[tuple[int, tuple[int, ...]], Use] = {}
        self._inside_mappings: dict[tuple[int, tuple[int, ...]], BestTilings] = {}
        self.searches = 0
        for operator in block.operators:
            self._cost(operator.nest, operator)
        self._prices = [self._price(number) for number in range(len(block.operators))]

    def _energies(self, nest: ExecutionNest, operator: BlockOperator) -> Energies | str:
        return energies_or_reason(operator.machine, operator.instruction, nest)

    def _cost(self, nest: ExecutionNest, operator: BlockOperator) -> Cost:
        energies = self._energies(nest, operator)
        return objective_cost(self.objective, nest, operator.machine, energies)

    # ------------------------------------------------------------------------------ totals

    def rank(self, number: int, use: Use) -> float:
        """Return the cost by which schedules are compared: of equal cycles, few bytes are better.

        Parameters
        ----------
        number : int
            Operator.
        use : Use
            Its use.
        """
        value = self.value(number, use)
        if self.objective is Objective.CYCLES:
            read, write = self._bandwidth(self.block.operators[number].machine)
            reading, writing = use.read + use.read_apart, use.written + use.written_apart
            value += _BYTES * (reading / read + writing / write)
        return value

    def value(self, number: int, use: Use) -> float:
        """Return the cost of an operator by the objective."""
        if self.objective is Objective.ENERGY:
            return use.energy
        if self.objective is Objective.BYTES:
            return use.moved
        return self.cycles(number, use)

    def cycles(self, number: int, use: Use) -> float:
        """Return the cycles of an operator with everything that it moves."""
        machine = self.block.operators[number].machine
        root = machine.root
        if self.overlaps:
            # Everything overlaps, over all executions.
            reading = (use.read + use.read_apart) / self._bandwidth(machine)[0]
            writing = (use.written + use.written_apart) / self._bandwidth(machine)[1]
            moving = reading + writing if root.half_duplex else max(reading, writing)
            return max(use.inside, moving)
        reading = use.read_apart / self._bandwidth(machine)[0]
        writing = use.written_apart / self._bandwidth(machine)[1]
        return use.total + reading + writing + use.transfers * root.latency_cycles

    @property
    def overlaps(self) -> bool:
        """True if hardware fills the memory on chip while anything is computed."""
        return self.memory.effective_overlap is Overlapping.HARDWARE

    def _bandwidth(self, machine: Hierarchy) -> tuple[float, float]:
        """Return the bytes a cycle that the memory on chip reads from main memory, and writes."""
        root = machine.root
        read, write = 1 / root.read_bytes, 1 / root.write_bytes
        return 1 / max(read, 1 / root.child_read_bytes), 1 / max(write, 1 / root.child_write_bytes)

    def transfer(self, number: int, size: float, *, is_output: bool) -> Use:
        """Return the use of a tensor that is loaded or stored by transfers of its own.

        Parameters
        ----------
        number : int
            Operator that pays for the transfer.
        size : float
            Bytes of the tensor.
        is_output : bool
            True if it is written to main memory.
        """
        price = self._prices[number]
        energy = size * (price.write if is_output else price.read + price.fill)
        if is_output:
            return Use(written_apart=size, transfers=1.0, energy=energy)
        return Use(read_apart=size, transfers=1.0, energy=energy)

    def _price(self, number: int) -> Price:
        operator = self.block.operators[number]
        energies = self._energies(operator.nest, operator)
        if isinstance(energies, str):
            return Price(0.0, 0.0)
        return energies.prices(operator.machine)[self.memory.name]

    def reread(self, number: int, name: str, size: float) -> Use:
        """Return the use of sums that an execution continues from the memory on chip."""
        operator = self.block.operators[number]
        scope = next(o.scope for o in operator.nest.operands if o.name == name)
        path = operator.machine.path(scope)
        if path[0].name == self.memory.name:
            return Use()
        energies = self._energies(operator.nest, operator)
        energy = 0.0
        for memory in path:
            if memory.name == self.memory.name:
                break
            if not isinstance(energies, str):
                price = energies.prices(operator.machine)[memory.name]
                energy += size * (price.read + price.fill)
        reading = size / self.memory.read_bytes
        return Use(inside=reading, total=reading, energy=energy)

    # ------------------------------------------------------------------------------ operators

    def use(
        self, number: int, extents: Extents, resident: Collection[str], capacity: float
    ) -> Use | None:
        """Return the use of a tile of an operator, or None if it does not fit.

        Parameters
        ----------
        number : int
            Operator.
        extents : mapping of (int, str) to int
            Extents of the tile, by operator and axis.
        resident : collection of str
            Tensors that are on chip before, or stay there.
        capacity : float
            Bytes of the memory on chip that the other tensors can occupy.
        """
        key = self._key(number, extents, resident, capacity)
        if key not in self._uses:
            self._uses[key] = self._least_use(number, extents, *key[2:])
        return self._uses[key]

    def cached_use(
        self, number: int, extents: Extents, resident: Collection[str], capacity: float
    ) -> tuple[bool, Use | None]:
        """Return whether :meth:`use` was computed before, and its result."""
        key = self._key(number, extents, resident, capacity)
        return key in self._uses, self._uses.get(key)

    def _key(
        self, number: int, extents: Extents, resident: Collection[str], capacity: float
    ) -> tuple[int, tuple[int, ...], frozenset[str], float]:
        operator = self.block.operators[number]
        sizes = tuple(extents[number, axis] for axis in operator.axes)
        mine = frozenset(t.name for t in operator.tensors if t.name in resident)
        footprint = sum(
            tensor_bytes(number, tensor, extents)
            for tensor in operator.tensors
            if tensor.name not in mine
        )
        if capacity >= footprint:
            return number, sizes, mine, math.inf
        # A little less room than there is, so that searches serve many tiles.
        step = math.floor(math.log2(max(capacity, 1.0)) * _STEPS) / _STEPS
        return number, sizes, mine, 2.0**step

    def _least_use(
        self, number: int, extents: Extents, resident: frozenset[str], capacity: float
    ) -> Use | None:
        operator = self.block.operators[number]
        nest, machine = self._part(number, extents, resident), operator.machine
        if capacity < math.inf:
            room = self.memory.capacity_bytes or math.inf
            halves = room / self.memory.tile_capacity
            memory = replace(
                machine.memories[self.memory.name], capacity_bytes=int(capacity * halves)
            )
            machine = replace(machine, memories={**machine.memories, memory.name: memory})
        if all(operand.home for operand in nest.operands):
            return self._inside(nest, operator)
        if capacity == math.inf and (self.overlaps or self.objective is not Objective.CYCLES):
            # Everything fits, so that nothing is moved twice, and the rest is as on chip.
            use = self._inside(nest, operator)
            for tensor in operator.tensors:
                if tensor.name not in resident:
                    size = tensor_bytes(number, tensor, extents)
                    use += self._streamed(number, size, is_output=tensor.is_output)
            return use
        try:
            check_one_execution(nest, machine)
        except TransformError:
            return None
        self.searches += 1
        best = best_tilings(nest, machine, self.rows, self._cost(nest, operator))
        return self._summed(best.tilings, nest, operator, machine)

    def _streamed(self, number: int, size: float, *, is_output: bool) -> Use:
        """Return the use of a tensor that is moved once while the operator is executed."""
        use = self.transfer(number, size, is_output=is_output)
        moved = replace(use, read_apart=0.0, written_apart=0.0, transfers=0.0)
        cycles = self.cycles(number, use)
        return replace(moved, read=use.read_apart, written=use.written_apart, total=cycles)

    def _inside(self, nest: ExecutionNest, operator: BlockOperator) -> Use:
        """Return the use of a nest whose operands are all on chip."""
        best = self._best_inside(nest, operator)
        tilings, machine = best.tilings, self._chip(operator.machine)
        return self._summed(tilings, nest, operator, machine)

    def _best_inside(self, nest: ExecutionNest, operator: BlockOperator) -> BestTilings:
        number = self.block.operators.index(operator)
        key = number, tuple(loop.extent for loop in nest.loops) + tuple(nest.axes.values())
        if key not in self._inside_mappings:
            self._inside_mappings[key] = self._search_inside(nest, operator)
        return self._inside_mappings[key]

    def _search_inside(self, nest: ExecutionNest, operator: BlockOperator) -> BestTilings:
        machine = self._chip(operator.machine)
        free = replace(nest, operands=tuple(replace(o, home="") for o in nest.operands))
        cost = self._cost(nest, operator)
        if len(machine.levels) == 1:
            # The unit reads from the memory on chip: nothing is moved.
            names = [loop.name for loop in nest.loops]
            sizes = {loop.name: np.ones(1) * loop.extent for loop in nest.loops}
            tile = HeldTile(sizes, frozenset())
            (tilings,) = cut(untiled(free), 0, [tile], {}, [[names]], nest, operator.machine)
            value = float(compute_time(tilings, nest, operator.machine).longest[0])
            if self.objective is not Objective.CYCLES:
                value = cost.fixed
            return BestTilings(tilings, free, value, value)
        self.searches += 1
        return best_tilings(free, machine, self.rows, cost)

    def _chip(self, machine: Hierarchy) -> Hierarchy:
        """Return the machine without main memory."""
        memories = {m.name: m for m in machine.memories.values() if m.parent is not None}
        memories[self.memory.name] = replace(memories[self.memory.name], parent=None)
        return replace(machine, memories=memories)

    def _summed(
        self, tilings: Tilings, nest: ExecutionNest, operator: BlockOperator, machine: Hierarchy
    ) -> Use:
        energies = self._energies(nest, operator)
        energy = 0.0 if isinstance(energies, str) else energies.fixed(nest)
        if not isinstance(energies, str):
            prices = energies.prices(operator.machine)
            for name, traffic in tilings.traffic.items():
                energy += prices[name].read * float(traffic.total_read[0])
                energy += prices[name].write * float(traffic.total_write[0])
                energy += prices[name].fill * float(traffic.received[0])
        total = float(compute_time(tilings, nest, operator.machine).longest[0])
        inside = total
        if len(machine.levels) > 1:
            for time in memory_times(
                tilings, nest, machine, compute_time(tilings, nest, machine).longest
            ):
                total = float(time.total[0])
                if time.memory != operator.machine.root.name:
                    inside = total
        moved = tilings.traffic.get(self.memory.name)
        return Use(
            inside=inside,
            total=total,
            read=float(moved.total_read[0]) if moved else 0.0,
            written=float(moved.total_write[0]) if moved else 0.0,
            energy=energy,
        )

    def _part(self, number: int, extents: Extents, resident: frozenset[str]) -> ExecutionNest:
        """Return the nest of a tile, whose resident operands are at home on chip."""
        operator = self.block.operators[number]
        sizes = {
            axis.loop: -(-extents[number, axis.name] // axis.granule)
            for axis in operator.axes.values()
            if axis.loop
        }
        loops = tuple(
            replace(loop, extent=min(loop.extent, sizes.get(loop.name, loop.extent)))
            for loop in operator.nest.loops
        )
        single = {loop.name: 1 for loop in loops if loop.extent == 1}
        operands = tuple(
            replace(
                operand,
                loops=operand.loops - single.keys(),
                home=self.memory.name if operand.name in resident else "",
            )
            for operand in operator.nest.operands
        )
        return ExecutionNest(
            tuple(loop for loop in loops if loop.extent > 1),
            {**operator.nest.axes, **single},
            operands,
            operator.nest.executed,
        )

    def inside_bound(self, number: int, extents: Extents) -> Use:
        """Return a lower bound on the use of a tile of an operator whose tensors are all on chip.

        Parameters
        ----------
        number : int
            Operator.
        extents : mapping of (int, str) to int
            Extents of the tile.
        """
        operator = self.block.operators[number]
        sizes = tuple(extents[number, axis] for axis in operator.axes)
        if (number, sizes) not in self._bounds:
            everything = frozenset(tensor.name for tensor in operator.tensors)
            nest = self._part(number, extents, everything)
            bound = self._best_inside(nest, operator).bound
            if self.objective is Objective.ENERGY:
                use = Use(energy=bound)
            elif self.objective is Objective.CYCLES:
                use = Use(inside=bound, total=bound)
            else:
                use = Use()
            self._bounds[number, sizes] = use
        return self._bounds[number, sizes]

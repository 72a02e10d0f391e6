"""A sum of tables of costs over variables with few values: what an assignment problem becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Costs over the values of different variables; infinite where they exclude each other."""

    scope: tuple[int, ...]
    costs: Costs


@dataclass(frozen=True)
class Shared:
    """The conversions of a tensor with several readers. ``costs``: from each value of variable
    ``written`` (row) to each layout that is needed (column). ``needs``: of each reader's variable
    the columns that its values need, -1 where one needs none. A column that several readers need is
    paid once."""

    written: int
    costs: Costs
    readers: tuple[int, ...]
    needs: tuple[tuple[int, ...], ...]

    @property
    def scope(self) -> tuple[int, ...]:
        return (self.written, *self.readers)

    @property
    def entries(self) -> int:
        """Of the one table over all variables."""
        return self.costs.shape[0] * math.prod(len(needs) for needs in self.needs)

    def whole(self) -> Table:
        """As one table, over the written layout and the readers that have a choice."""
        choosing = [k for k, needs in enumerate(self.needs) if len(needs) > 1]
        always = {needs[0] for needs in self.needs if len(needs) == 1}
        rank = 1 + len(choosing)
        total = np.zeros((1,) * rank)
        for column, costs in enumerate(self.costs.T):
            needed = np.full((1,) * rank, column in always)
            for axis, reader in enumerate(choosing, 1):
                at = [1] * rank
                at[axis] = -1
                needed = needed | (np.array(self.needs[reader]) == column).reshape(at)
            total = total + np.where(needed, costs.reshape(-1, *[1] * len(choosing)), 0)
        shape = (self.costs.shape[0], *(len(self.needs[reader]) for reader in choosing))
        scope = (self.written, *(self.readers[reader] for reader in choosing))
        return Table(scope, np.ascontiguousarray(np.broadcast_to(total, shape)))

    def pairs(self, first: int) -> list[Table]:
        """As tables over two variables each, with a new variable a column, numbered from
        ``first``: 1 where the layout exists."""
        tables: list[Table] = []
        for column, costs in enumerate(self.costs.T):
            exists = first + column
            tables.append(Table((self.written, exists), np.stack([np.zeros_like(costs), costs], 1)))
            for reader, needs in zip(self.readers, self.needs, strict=True):
                missing = np.where(np.array(needs) == column, np.inf, 0.0)
                if missing.any():
                    free = np.zeros_like(missing)
                    tables.append(Table((reader, exists), np.stack([missing, free], 1)))
        return tables


@dataclass(frozen=True)
class CostNetwork:
    """``sizes``: of each variable the number of its values. To be minimised: the sum of all."""

    sizes: tuple[int, ...]
    tables: tuple[Table, ...]
    shared: tuple[Shared, ...] = ()

    @property
    def entries(self) -> int:
        return sum(table.costs.size for table in self.tables) + sum(
            shared.costs.size + sum(map(len, shared.needs)) for shared in self.shared
        )

    def as_tables(self) -> CostNetwork:
        """Without shared conversions: each as one table or, where that has more entries than a
        variable a layout would lead to, as pairs. New variables come after the others."""
        sizes, tables = list(self.sizes), list(self.tables)
        for shared in self.shared:
            rows, columns = shared.costs.shape
            if shared.entries <= rows * 2**columns:
                tables.append(shared.whole())
            else:
                tables += shared.pairs(len(sizes))
                sizes += [2] * columns
        return CostNetwork(tuple(sizes), tuple(tables))

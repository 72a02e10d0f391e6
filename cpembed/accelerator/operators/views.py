"""Other dimensions of the same tensors: without those of size 1, and with neighbours merged.

An instruction axis is fed by one or two axes of a statement. Pixels of a convolution with one tap,
or rows of several dimensions, are one axis once the dimensions are merged: each tensor keeps its
elements in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cpembed.accelerator.operators.forms import OperatorForm
from cpembed.accelerator.specification import Specification
from cpembed.ir.computation import Axis, Operand, changed_accesses
from cpembed.ir.expression import Access
from cpembed.ir.index import IndexExpr, IndexTerm

_Change = Callable[[int, Access], Access]
"""Access in a statement, by its number, after a change."""


def with_forward_constants(form: OperatorForm) -> OperatorForm:
    """Return a form that reads its constants forwards.

    A dimension that every access walks backwards is reversed, in the array and in the indices.
    """
    specification = form.specification
    reversed_places: dict[str, set[int]] = {}
    for name, array in specification.constants.items():
        accesses = [
            access
            for statement in specification.statements
            for access in statement.computation.access_maps.get(name, ())
        ]
        reversed_places[name] = {
            d
            for d in range(array.ndim)
            if all(a.index[d].terms for a in accesses)
            and all(t.coefficient < 0 for a in accesses for t in a.index[d].terms)
        }
    if not any(reversed_places.values()):
        return form

    def changed(access: Access) -> Access:
        places = reversed_places.get(access.operand, set())
        shape = specification.operands[access.operand].shape
        index = tuple(
            i.times(-1) + (shape[d] - 1) if d in places else i for d, i in enumerate(access.index)
        )
        return replace(access, index=index)

    statements = tuple(
        replace(
            statement,
            computation=replace(
                statement.computation,
                statements=changed_accesses(statement.computation.statements, changed),
            ),
        )
        for statement in specification.statements
    )
    constants = {
        name: np.ascontiguousarray(np.flip(array, tuple(reversed_places[name])))
        if reversed_places[name]
        else array
        for name, array in specification.constants.items()
    }
    changed_specification = replace(specification, statements=statements, constants=constants)
    return replace(form, specification=changed_specification)


def squeezed(form: OperatorForm) -> OperatorForm:
    """Return a form without axes of one point, and without dimensions of one element.

    Each statement keeps its value at every point: the only value of such an axis is 0.
    """
    specification = form.specification
    computations = [statement.computation for statement in specification.statements]
    units = [{a.name: IndexExpr() for a in c.axes if a.extent == 1} for c in computations]

    def at_zero(number: int, access: Access) -> Access:
        return replace(access, index=tuple(i.substitute(units[number]) for i in access.index))

    used: dict[str, set[int]] = {}
    for number, computation in enumerate(computations):
        for name, accesses in computation.access_maps.items():
            for access in accesses:
                index = at_zero(number, access).index
                moved = {d for d, i in enumerate(index) if i.terms or i.constant}
                used.setdefault(name, set()).update(moved)
    places_of = {
        name: [d for d, size in enumerate(operand.shape) if size > 1 or d in used[name]]
        for name, operand in specification.operands.items()
    }
    shapes = {
        name: tuple(specification.operands[name].shape[d] for d in places)
        for name, places in places_of.items()
    }

    def changed(number: int, access: Access) -> Access:
        index = at_zero(number, access).index
        return replace(access, index=tuple(index[d] for d in places_of[access.operand]))

    axes = [tuple(a for a in c.axes if a.extent > 1) for c in computations]
    return _rebuilt(form, axes, shapes, changed)


def _rebuilt(
    form: OperatorForm,
    axes: Sequence[tuple[Axis, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    change: _Change,
) -> OperatorForm:
    """Return a form with other axes of its statements and shapes of its tensors."""

    def operand(old: Operand) -> Operand:
        return replace(old, shape=shapes[old.name])

    specification = form.specification
    statements = tuple(
        replace(
            statement,
            # In one step: a computation checks that its parts fit.
            computation=replace(
                statement.computation,
                axes=axes[number],
                inputs=tuple(map(operand, statement.computation.inputs)),
                outputs=tuple(map(operand, statement.computation.outputs)),
                statements=changed_accesses(
                    statement.computation.statements,
                    lambda access, number=number: change(number, access),
                ),
            ),
        )
        for number, statement in enumerate(specification.statements)
    )
    constants = {n: a.reshape(shapes[n]) for n, a in specification.constants.items()}
    return OperatorForm(
        replace(specification, statements=statements, constants=constants),
        {name: replace(view, shape=shapes[name]) for name, view in form.tensors.items()},
    )


# -- neighbouring dimensions -----------------------------------------------------------------------


@dataclass
class _Merge:
    """Dimensions and axes that have to be merged together.

    ``dimensions`` has the first of two neighbours for each tensor, ``axes`` the two axes of each
    statement.
    """

    specification: Specification
    dimensions: dict[str, int] = field(default_factory=dict[str, int])
    axes: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])

    def tensor(self, name: str, dimension: int) -> bool:
        """Merge a dimension with the next one; return False where that is impossible."""
        if name in self.dimensions:
            return self.dimensions[name] == dimension
        self.dimensions[name] = dimension
        for number, statement in enumerate(self.specification.statements):
            computation = statement.computation
            for access in computation.access_maps.get(name, ()):
                outer, inner = (i.single_iterator for i in access.index[dimension : dimension + 2])
                if outer is None or inner is None or outer == inner:
                    return False
                shape = computation.operand(name).shape[dimension : dimension + 2]
                full = (computation.extents[outer], computation.extents[inner]) == shape
                if not full or not self._statement(number, (outer, inner)):
                    return False
        return True

    def _statement(self, number: int, pair: tuple[str, str]) -> bool:
        """Merge two axes of a statement; return False where that is impossible."""
        if number in self.axes:
            return self.axes[number] == pair
        self.axes[number] = pair
        computation = self.specification.statements[number].computation
        if computation.axis(pair[0]).kind is not computation.axis(pair[1]).kind:
            return False
        for name, accesses in computation.access_maps.items():
            for access in accesses:
                places = [d for d, i in enumerate(access.index) if {*i.iterators} & {*pair}]
                if not places:
                    continue
                neighbours = len(places) == 2 and places[1] == places[0] + 1
                if not neighbours or pair != tuple(access.index[d].single_iterator for d in places):
                    return False
                if not self.tensor(name, places[0]):
                    return False
        return True


def flattened(form: OperatorForm) -> OperatorForm:
    """Return a form with neighbouring dimensions merged wherever all statements allow it.

    Two dimensions merge where each access has the same two axes there and nowhere else, over their
    full extents: the merged axis then counts the pairs in their order. The last dimension of the
    result stays, as rows of a memory hold it.

    Parameters
    ----------
    form : OperatorForm
        A form without axes of one point (:func:`squeezed`).
    """
    merged = True
    while merged:
        merged = False
        output = form.specification.statements[-1].output
        for dimension in range(len(output.shape) - 2):
            merge = _Merge(form.specification)
            if merge.tensor(output.name, dimension):
                form, merged = _applied(form, merge), True
                break
    return form


def _applied(form: OperatorForm, merge: _Merge) -> OperatorForm:
    specification = form.specification
    names = {n: f"{outer}_{inner}" for n, (outer, inner) in merge.axes.items()}
    axes: list[tuple[Axis, ...]] = []
    for number, statement in enumerate(specification.statements):
        computation = statement.computation
        if number not in merge.axes:
            axes.append(computation.axes)
            continue
        outer, inner = merge.axes[number]
        size = computation.extents[outer] * computation.extents[inner]
        axes.append(
            tuple(
                Axis(names[number], size, a.kind) if a.name == outer else a
                for a in computation.axes
                if a.name != inner
            )
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for name, operand in specification.operands.items():
        shape, d = operand.shape, merge.dimensions.get(name)
        if d is not None:
            shape = (*shape[:d], math.prod(shape[d : d + 2]), *shape[d + 2 :])
        shapes[name] = shape

    def changed(number: int, access: Access) -> Access:
        d = merge.dimensions.get(access.operand)
        if d is None:
            return access
        index = IndexExpr((IndexTerm(names[number]),))
        return replace(access, index=(*access.index[:d], index, *access.index[d + 2 :]))

    return _rebuilt(form, axes, shapes, changed)

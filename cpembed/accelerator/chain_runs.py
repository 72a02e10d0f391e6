"""Programs between two steps of the host, between which tensors may stay on chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cpembed.accelerator.graph_layouts import GraphLayout
from cpembed.accelerator.network_steps import (
    HostStep,
    LayoutStep,
    ProgramStep,
    Step,
    ViewStep,
)
from cpembed.accelerator.program import MainTensor


@dataclass
class Run:
    """Programs without work of the host between them, and the steps around them.

    Attributes
    ----------
    written : dict of str to GraphLayout
        Tensors that programs write, by their names in the graph.
    origins : dict of str to str
        Tensor that programs write of which each view has the elements.
    """

    programs: list[ProgramStep] = field(default_factory=list[ProgramStep])
    before: list[Step] = field(default_factory=list[Step])
    after: list[Step] = field(default_factory=list[Step])
    written: dict[str, GraphLayout] = field(default_factory=dict[str, GraphLayout])
    origins: dict[str, str] = field(default_factory=dict[str, str])

    def takes(self, step: Step) -> bool:
        """Add a step, or return False if it has to follow what is there."""
        if isinstance(step, HostStep):
            return False
        if isinstance(step, LayoutStep):
            if step.tensor in self.written or step.tensor in self.origins:
                return False
            self.before.append(step)
        elif isinstance(step, ViewStep):
            (source, *_) = step.operator.inputs
            is_later = source in self.written or source in self.origins
            if is_later:
                self.origins[step.operator.output] = self.origin(source)
            (self.after if is_later else self.before).append(step)
        else:
            return self._takes_program(step)
        return True

    def with_views(self, programs: Sequence[ProgramStep]) -> Iterator[Step]:
        """Yield programs, each before the views of what it writes, which later ones may read."""
        pending = [step for step in self.after if isinstance(step, ViewStep)]
        written = set[str]()
        for program in programs:
            yield program
            written.update(name for operator in program.operators for name in operator.outputs)
            for view in [v for v in pending if self.origins[v.operator.output] in written]:
                pending.remove(view)
                yield view

    def origin(self, tensor: str) -> str:
        """Return the tensor that a program writes of which a tensor has the elements."""
        return self.origins.get(tensor, tensor)

    def _takes_program(self, step: ProgramStep) -> bool:
        if step.host:
            return False
        specification, tensors = step.form.specification, step.form.tensors
        read: dict[str, GraphLayout] = {}
        for name in specification.inputs:
            tensor = tensors[name]
            origin = self.origin(tensor.name)
            if origin not in self.written:
                continue
            view = GraphLayout(tensor, step.layout(name, is_read=True).anonymous)
            # Rows hold a tensor in one shape for each operator.
            if read.setdefault(origin, view) != view:
                return False
            if not _continues(self.written[origin], view):
                return False
        for name in specification.outputs:
            layout = step.layout(name, is_read=False).anonymous
            self.written[tensors[name].name] = GraphLayout(tensors[name], layout)
        self.programs.append(step)
        return True


def _continues(written: GraphLayout, read: GraphLayout) -> bool:
    """Return True if a program may read a tensor as another one wrote it."""
    if written == read:
        return True
    # Beyond the end of a dimension, other shapes have other elements.
    are_plain = _is_plain(written.layout) and _is_plain(read.layout)
    return are_plain and written.has_bytes_of(read)


def _is_plain(layout: MainTensor) -> bool:
    """Return True if a tensor lies in main memory row-major, without margins."""
    return layout == MainTensor.dense(layout.name, layout.shape, layout.dtype, layout.role)


def view_origins(steps: Sequence[Step]) -> dict[str, str]:
    """Return the tensor of which each view has the elements."""
    origins: dict[str, str] = {}
    for step in steps:
        if isinstance(step, ViewStep):
            source = step.operator.inputs[0]
            origins[step.operator.output] = origins.get(source, source)
    return origins

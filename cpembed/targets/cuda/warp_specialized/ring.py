"""Ring of stages of shared memory as TensorIR, between producers and consumers.

Each stage has two mbarriers: *full* completes a phase when the copies of the stage have arrived,
*empty* when all warps of the consumers are done with it. Each thread counts the stages for itself,
and the parity of the ring's turn.
"""

from __future__ import annotations

from cpembed.codegen.plan import Script
from cpembed.targets.cuda.instructions import WARP_GROUP
from cpembed.targets.cuda.warp_specialized.loads import copied_bytes
from cpembed.targets.cuda.warp_specialized.schedule import BARRIER_BYTES, SpecializedPlan
from cpembed.targets.cuda.writer import Writer, shared_pointer


class StageCounter:
    """Writer of a thread's number of a stage, and of the parity of the ring's turn.

    Parameters
    ----------
    script : Script
    name : str
        Name of the array of both.
    stages : int
        Number of stages of the ring.
    """

    def __init__(self, script: Script, name: str, stages: int) -> None:
        self.script, self.name, self.stages = script, name, stages

    def allocate(self) -> None:
        """Write both, of the first stage."""
        self.script.line(f'{self.name} = T.alloc_buffer((2,), "int32", scope="local")')
        self.script.lines((f"{self.name}[0] = 0", f"{self.name}[1] = 0"))

    def advance(self) -> None:
        """Write the change to the next stage."""
        stage, parity = f"{self.name}[0]", f"{self.name}[1]"
        self.script.line(f"{stage} = {stage} + 1")
        with self.script.nested(f"if {stage} == {self.stages}:"):
            self.script.lines((f"{stage} = 0", f"{parity} = T.bitwise_xor({parity}, 1)"))


class Ring(StageCounter):
    """Writer of the stages' barriers and numbers."""

    def __init__(self, writer: Writer, plan: SpecializedPlan) -> None:
        super().__init__(writer.script, "ring", plan.schedule.stages)
        self.writer, self.plan, self.schedule = writer, plan, plan.schedule

    def initialise(self) -> None:
        """Write the initialisation of all barriers, behind which all threads see them."""
        stages = self.schedule.stages
        # One arrival announces the bytes of the asynchronous copies, the others are the threads'.
        arrivals = bool(copied_bytes(self.plan)) + WARP_GROUP * self.plan.by_threads
        readers = self.schedule.readers * sum(self._sharing)
        with self.script.nested("if thread == 0:"):
            with self.script.nested(f"for stage in T.serial({stages}):"):
                for empty, count in ((False, arrivals), (True, readers)):
                    barrier = shared_pointer(self.barrier("stage", empty=empty))
                    self.writer.call("cpembed_mbarrier_init", barrier, str(count))
            if self.schedule.alternating:
                for group in range(self.schedule.groups):
                    barrier = shared_pointer(self.turn_barrier(str(group)))
                    warps = str(self.schedule.readers)
                    self.writer.call("cpembed_mbarrier_init", barrier, warps)
            self.writer.call("cpembed_mbarrier_init_fence")
        if self.schedule.cluster_blocks > 1:
            self.writer.call("cpembed_cluster_sync")
        else:
            self.writer.barrier()

    @property
    def _sharing(self) -> tuple[int, int]:
        """Number of blocks whose copies go to a block: of its row of a cluster, and others."""
        return self.schedule.sharers(0), self.schedule.sharers(1) - 1

    def barrier(self, stage: str, *, empty: bool) -> str:
        """Return the byte of the mbarrier of a stage."""
        offset = self.plan.barrier_offset + self.schedule.stages * BARRIER_BYTES * empty
        return f"{offset} + {stage} * {BARRIER_BYTES}"

    def places(self, stage: str) -> tuple[str, str]:
        """Return the bytes at which the images of a stage begin."""
        first = f"{stage} * {self.plan.stage_bytes}"
        return first, f"{first} + {self.plan.images[0].bytes}"

    def await_empty(self) -> None:
        """Write a producer's wait for its stage."""
        empty = shared_pointer(self.barrier("ring[0]", empty=True))
        # The first turn finds the parity of a phase that never was: stages are empty.
        self.writer.call("cpembed_mbarrier_wait", empty, "T.bitwise_xor(ring[1], 1)")

    def await_full(self) -> None:
        """Write a consumer's wait for its stage."""
        full = shared_pointer(self.barrier("ring[0]", empty=False))
        self.writer.call("cpembed_mbarrier_wait", full, "ring[1]")

    def turn_barrier(self, group: str) -> str:
        """Return the byte of the mbarrier by which a group learns that it may multiply."""
        return f"{self.plan.turn_offset} + {group} * {BARRIER_BYTES}"

    def await_turn(self) -> None:
        """Write a group's wait until the group before it has read all of its stages.

        A group that waited for stages more than one turn of the ring ahead would take the parity of
        an earlier phase for theirs.
        """
        # Nobody is before the first item of the first group.
        parity = f"(turn_of_block // {self.schedule.groups} + T.cast(consumer == 0, 'int32')) % 2"
        barrier = shared_pointer(self.turn_barrier("consumer"))
        self.writer.call("cpembed_mbarrier_wait", barrier, parity)

    def end_turn(self) -> None:
        """Write that the next group may multiply."""
        following = f"(consumer + 1) % {self.schedule.groups}"
        with self.script.nested("if lane == 0:"):
            barrier = shared_pointer(self.turn_barrier(following))
            self.writer.call("cpembed_mbarrier_arrive", barrier)

    def skip(self, count: str) -> None:
        """Write the change to a later stage, which other groups have read until then."""
        stages = self.schedule.stages
        self.script.line(f"later = ring[0] + {count}")
        self.script.lines(
            (
                f"ring[1] = T.bitwise_xor(ring[1], T.truncdiv(later, {stages}) % 2)",
                f"ring[0] = T.truncmod(later, {stages})",
            )
        )

    def release(self, stage: str) -> None:
        """Write that a warp of the consumers is done with a stage."""
        in_row, in_column = self._sharing
        empty = shared_pointer(self.barrier(stage, empty=True))
        if in_row + in_column == 1:
            with self.script.nested("if lane == 0:"):
                self.writer.call("cpembed_mbarrier_arrive", empty)
            return
        # A lane for each block whose copies go here: those of the row of the cluster, then those of
        # its column without this one.
        columns = self.schedule.cluster[1]
        row = f"rank // {columns} * {columns} + lane" if in_row > 1 else "rank"
        number = f"(lane - {in_row})"
        above = f"T.Select({number} < rank // {columns}, {number}, {number} + 1)"
        block = f"T.Select(lane < {in_row}, {row}, {above} * {columns} + rank % {columns})"
        with self.script.nested(f"if lane < {in_row + in_column}:"):
            self.writer.call("cpembed_mbarrier_arrive_at", empty, block)

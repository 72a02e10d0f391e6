"""VTA's memory path and modules cycle by cycle, after the Chisel sources: a second source for the
timed simulator, which goes from event to event. Registers are updated at the end of a cycle. GEMM
and ALU are counted, not modelled; queues of instructions have no end.
"""

from __future__ import annotations

from collections import deque

from cpembed.targets.vta.isa import Alu, Finish, Gemm, Load, Memory, Module, Store, module_of

CLIENT = {Memory.UOP: 1, Memory.INP: 2, Memory.WGT: 3, Memory.ACC: 4}
ORDER = (Module.LOAD, Module.COMPUTE, Module.STORE)


class Dram:
    """VTAMemDPI: requests in order; the delay counts while one waits, anew after none did."""

    def __init__(self, delay):
        self.delay, self.queue, self.counter = delay, deque(), 0
        self.busy, self.left, self.stream, self.out = False, 0, deque(), None

    def tick(self, request):
        """One cycle; the beat on the bus in it is ``out`` before the call."""
        waiting, took = bool(self.queue), None
        if waiting and not self.busy and self.counter == self.delay:
            took = self.queue.popleft()
        self.counter = min(self.counter + 1, self.delay) if waiting else 0
        if took is not None:
            client, beats = took
            self.stream.extend((client, beat + 1 == beats) for beat in range(beats))
            self.left, self.busy = beats - 1, beats > 1
        elif self.busy and self.out is not None:
            self.busy = self.left != 1
            self.left -= 1
        if request is not None:
            self.queue.append(request)
        self.out = self.stream.popleft() if self.stream else None


class Reader:
    """TensorLoad: commands, beats in flight, pads. Wide: an element is at most a beat."""

    def __init__(self, load, config, burst, bus):
        self.client = CLIENT[load.memory]
        size = config.element_bytes(load.memory)
        self.wide = size <= bus
        self.commands = deque()
        for row in range(load.y):
            start = (load.dram + row * load.x_stride) * size
            at, end = start // bus, -(-(start + load.x * size) // bus)
            while at < end:
                beats = min(end - at, burst - at % burst)
                self.commands.append(beats)
                at += beats
        self.wait = load.y_before
        self.flight, self.piped, self.cycle = 0, False, 0
        self.pads = deque(self.padding(load))

    @staticmethod
    def padding(load):
        """Steps of ZeroPadding: 1 writes, 0 passes a row."""
        width = load.x_before + load.x + load.x_after
        sides = load.x_before + load.x_after
        yield from [1] * (load.y_before * width)
        if sides:
            yield from [1] * (sides * load.y)
        elif load.y_after:
            yield from [0] * load.y
        yield from [1] * (load.y_after * width)

    def command(self):
        """The command on the wires, in the cycles after the start."""
        return self.commands[0] if self.commands and self.cycle > self.wait else None

    def tick(self, sent, beat):
        """True in the cycle in which it is done."""
        done = self.cycle > 0 and not self.commands and not self.flight
        arrives, self.piped = (beat, False) if self.wide else (self.piped, beat)
        if self.cycle >= (1 if self.wide else 2):
            done = done and not self.pads
            if self.pads and not (self.pads[0] and arrives):
                self.pads.popleft()
        else:
            done = False
        if sent:
            self.flight += self.commands.popleft()
        self.flight -= arrives
        self.cycle += 1
        return done


class Writer:
    """TensorStore with VME and memory: a burst is command, address, and beats. Wide, the bus holds
    a tile; else beats stop for each of a tile's rows, which is read from SRAM."""

    def __init__(self, store, config, burst, bus):
        size = config.element_bytes(Memory.OUT)
        wide, row = size <= bus, size // config.batch // bus
        self.left = 0
        for y in range(store.y):
            start = (store.dram + y * store.x_stride) * size
            end = start + store.x * size
            for at in range(start // (burst * bus), -(-end // (burst * bus))):
                first = max(start // bus, at * burst)
                beats = min(-(-end // bus), (at + 1) * burst) - first
                # sWriteCmd; sWriteAddr and its answer; beats, sReadMem between rows; the ack
                self.left += 1 + 2 + beats + (0 if wide else beats // row - 1) + 1

    def tick(self):
        self.left -= 1
        return self.left == 0


class Rtl:
    """``bus``: bytes of a beat."""

    def __init__(self, program, *, delay=16, burst=16, outstanding=16, bus=8):
        self.code, self.config = program.instructions, program.config
        self.burst, self.bus = burst, bus
        self.dram, self.tags = Dram(delay), outstanding
        self.slots = [None] * 5
        self.modules = [deque() for _ in ORDER]
        self.running = [None] * 3
        self.tokens = {(a, b): 0 for a in range(3) for b in range(3)}
        self.issued, self.done = [-1] * len(self.code), [-1] * len(self.code)
        self.fetched, self.batch, self.fetch = 0, 0, "command"
        self.received, self.piped, self.decoded, self.pipe = 0, False, deque(), None
        self.beat = None

    def run(self):
        """Cycles at which instructions issue, and at which the next one could."""
        cycle = 1
        while self.done[-1] < 0:
            assert cycle < 200_000
            self.step(cycle)
            cycle += 1
        return self.issued, self.done

    def step(self, cycle):
        slots, pushes, arrivals = list(self.slots), [], []
        request = self.arbitrate(slots)
        beat = self.beat
        self.step_fetch(slots, beat, arrivals)
        for m in range(3):
            self.step_module(m, cycle, slots, beat, pushes)
        out = self.dram.out
        self.beat = None if out is None else out[0]
        if out is not None and out[1]:
            self.tags += 1
        self.dram.tick(request)
        self.slots = slots
        for queue in pushes:
            self.tokens[queue] += 1
        for m, number in arrivals:
            self.modules[m].append(number)

    def arbitrate(self, slots):
        """VME: one command a cycle of the first client that has one."""
        last = self.dram.out is not None and self.dram.out[1]
        for client, beats in enumerate(self.slots):
            if beats is not None:
                if last or not self.tags:
                    return None
                slots[client] = None
                self.tags -= 1
                return client, beats
        return None

    def step_fetch(self, slots, beat, arrivals):
        """Fetch64Bit, or FetchWideVME: its beats and its instructions pass a register each, and its
        commands begin a cycle later, but for the first one."""
        wide, number = self.bus >= 16, None
        if self.fetch == "begin":
            self.fetch = "command"
        elif self.fetch == "command":
            self.batch = min(self.burst if wide else self.burst // 2, len(self.code) - self.fetched)
            if self.slots[0] is None:
                slots[0] = -(-16 * self.batch // self.bus)
                self.received, self.fetch = -slots[0], "read"
        elif self.fetch == "read":
            before, arrived = self.received, beat == 0
            self.received += self.piped if wide else arrived
            self.piped = arrived
            if not (before if wide else self.received):
                self.fetch = "drain"
                self.decoded.extend(range(self.fetched, self.fetched + self.batch))
                self.fetched += self.batch
        elif self.fetch == "drain":
            if self.decoded:
                number = self.decoded.popleft()
            else:
                ahead = "begin" if wide else "command"
                self.fetch = ahead if self.fetched < len(self.code) else "idle"
        if wide:
            number, self.pipe = self.pipe, number
        if number is not None:
            arrivals.append((ORDER.index(module_of(self.code[number])), number))

    def step_module(self, m, cycle, slots, beat, pushes):
        if self.running[m] is None:
            self.start(m, cycle)
            return
        number, unit = self.running[m]
        if isinstance(unit, Reader):
            beats = unit.command()
            sent = beats is not None and self.slots[unit.client] is None
            if sent:
                slots[unit.client] = beats
            finished = unit.tick(sent, beat == unit.client)
        elif isinstance(unit, Writer):
            finished = unit.tick()
        else:
            self.running[m] = (number, unit - 1)
            finished = unit == 1
        if finished:
            self.running[m] = None
            self.done[number] = cycle + 1
            self.modules[m].popleft()
            tokens = self.code[number].tokens
            pushes += [(m, m - 1)] * tokens.push_prev + [(m, m + 1)] * tokens.push_next

    def start(self, m, cycle):
        if not self.modules[m]:
            return
        number = self.modules[m][0]
        instruction = self.code[number]
        tokens = instruction.tokens
        pops = [(m - 1, m)] * tokens.pop_prev + [(m + 1, m)] * tokens.pop_next
        if not all(self.tokens[queue] for queue in pops):
            return
        for queue in pops:
            self.tokens[queue] -= 1
        self.issued[number] = cycle
        unit = self.unit(instruction)
        if isinstance(unit, Reader):
            unit.tick(False, False)
        if unit == 0:
            self.done[number] = cycle + 1
            return
        self.running[m] = (number, unit)

    def unit(self, instruction):
        """What executes it; a number of cycles after the one of the issue for what is counted."""
        match instruction:
            case Finish():
                return 0
            case Load() | Store() if not instruction.x:
                return 1
            case Load():
                return Reader(instruction, self.config, self.burst, self.bus)
            case Store():
                return Writer(instruction, self.config, self.burst, self.bus)
            case Gemm() | Alu():
                count = (instruction.uop_end - instruction.uop_begin) * instruction.outer
                passes = 1 if isinstance(instruction, Gemm) or instruction.use_immediate else 2
                return 6 + passes * count * instruction.inner

"""Random instruction sets of accelerators for tests: valid, and unlike each other.

A machine has one to three memories of rows, loads and stores with or without strides, a product of
one of several shapes, and in part zeros, biases, moves, requantization and element-wise
instructions. Units run in order, with interlocks or with channels. Every machine can compute a
product of matrices in principle, though not every layer fits into it.
"""

from __future__ import annotations

import random
from typing import Any

from cpembed.hw.isa import InstructionSet
from cpembed.hw.isa_reader import read_instruction_set

Table = dict[str, Any]

PRODUCTS = {
    "rows by matrix": ("C[x,y] += A[x,z] * B[z,y]", "z", "y"),
    "rows by rows": ("C[x,y] += A[x,z] * B[y,z]", "y", "z"),
    "row by matrix": ("C[y] += A[z] * B[z,y]", "z", "y"),
    "outer product": ("C[x,y] += A[x] * B[y]", "", "y"),
    "row by element": ("C[x,y] += A[x] * B[y]", "", "y"),
}
"""Expression of each shape of product, and the axes in rows and lanes of B."""


def random_tables(seed: int) -> Table:
    """Return the contents of a file that describes a random machine."""
    return _Machine(random.Random(seed)).tables(f"random{seed}")


def random_machine(seed: int) -> InstructionSet:
    """Return a random machine."""
    tables = random_tables(seed)
    return read_instruction_set(tables, tables["name"])


class _Machine:
    """Instructions and memories of one machine, drawn in turn."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        # Lanes of products' inputs and outputs.
        self.depth = draw.choice([1, 2, 4, 8, 12])
        self.width = draw.choice([1, 4, 8, 8, 16])
        self.runtime = draw.random() < 0.6
        self.most_rows = draw.choice([4, 8, 16, 64])
        self.memories: Table = {"main": {"kind": "main", **self._bandwidth()}}
        self.instructions: list[Table] = []
        # Registers that some instruction reads.
        self.registers: Table = {}

    def chance(self, probability: float = 0.5) -> bool:
        return self.draw.random() < probability

    def _bandwidth(self) -> Table:
        values: Table = {}
        if self.chance():
            values["bytes_per_cycle"] = self.draw.choice([1, 4, 8, 64])
        if self.chance():
            values["latency_cycles"] = self.draw.choice([5, 50])
        return values

    def _axis(self, size: int, *, fixed: bool = False) -> Any:
        if fixed or size == 1 or not (self.runtime or self.chance(0.2)):
            return size
        return {
            "max": size,
            **({"min": 2, "step": 2} if size % 2 == 0 and self.chance(0.1) else {}),
        }

    def _memory(self, name: str, row_bytes: int) -> None:
        banks = self.draw.choice([1, 1, 2, 4])
        rows = banks * self.draw.choice([64, 96, 256])
        self.memories[name] = {"rows": rows, "row_bytes": row_bytes, "banks": banks}

    def _cycles(self, *axes: str) -> Table:
        return {"1": self.draw.choice([1, 4]), **({"*".join(axes): 1} if axes else {})}

    def _add(self, name: str, kind: str, expression: str, axes: Table, **keys: Any) -> Table:
        """Add an instruction; ``kind`` is the kind of its unit."""
        operands = keys.pop("operands")
        sized = [a for a in axes if a in {"r", "x", "y"}]
        table = {
            "name": name, "unit": kind, "expression": expression, "axes": axes,
            "operands": operands, "cycles": self._cycles(*sized[:1]), "emit": f"{name}();",
        }  # fmt: skip
        if not axes:
            del table["axes"]
        self.instructions.append({**table, **keys})
        return table

    def _register(self, name: str, dtype: str, unit: str) -> None:
        if name in self.registers:
            return
        self.registers[name] = unit
        self.memories[name] = {"kind": "register", "dtype": dtype}
        self._add(
            f"set_{name}", unit, "r[] = v[]", {},
            operands={"r": {"memory": name}, "v": {"memory": "immediate", "dtype": dtype}},
        )  # fmt: skip

    def _rows(self, memory: str, dtype: str, rows: str, lanes: str) -> Table:
        return {
            "memory": memory, "dtype": dtype, "rows": [rows] if rows else [], "lanes": [lanes],
        }  # fmt: skip

    def _main(self, dtype: str, dimension: str, name: str, unit: str) -> Table:
        """Return a place in main memory, whose stride may be that of a register."""
        place: Table = {"memory": "main", "dtype": dtype}
        if dimension and self.chance(0.2):
            self._register(f"stride_{name}", "int32", unit)
            place["stride"] = {dimension: f"stride_{name}"}
        return place

    def _transfer(self, name: str, memory: str, dtype: str, lanes: int, **keys: Any) -> None:
        """Add a load or a store between main memory and a memory of rows."""
        stores, statement = keys.get("stores", False), keys.get("statement", "D[r,e] = S[r,e]")
        rows = self._rows(memory, dtype, "r", "e")
        if self.chance(0.3):
            rows["stride"] = {"r": "any"}
        unit = "store" if stores else "load"
        main = self._main(keys.get("main_dtype", dtype), "r", name, unit)
        operands = {"D": main, "S": rows} if stores else {"D": rows, "S": main}
        operands |= keys.get("operands", {})
        axes = {"r": self._axis(self.most_rows), "e": self._axis(lanes)}
        self._add(name, unit, statement, axes, operands=operands)

    # -- parts of a machine -----------------------------------------------------------------------

    def tables(self, name: str) -> Table:
        """Return the contents of the file."""
        self._add_memories()
        self._add_product()
        self._add_beginnings()
        self._add_stores()
        self._add_extras()
        units, synchronization, channels = self._units()
        return {
            "name": name, "description": "a random machine", "source": "tests", "known": "assumed",
            "clock_mhz": 100, "synchronization": synchronization, "units": units,
            "memories": self.memories, "instructions": self.instructions, **channels,
        }  # fmt: skip

    def _add_memories(self) -> None:
        """Add memories, and the loads of inputs and weights."""
        self.shape = self.draw.choice(list(PRODUCTS))
        if self.shape == "row by element":
            self.depth = 1
        _, weight_rows, weight_lanes = PRODUCTS[self.shape]
        sizes = {"y": self.width, "z": self.depth}
        lanes_a = self.depth if "product" not in self.shape else self.most_product_rows()
        lanes_b = sizes[weight_lanes]
        del weight_rows
        layout = self.draw.choice(["one", "sums apart", "three", "fed"])
        bytes_of_inputs = max(lanes_a, lanes_b)
        if layout == "one":
            self._memory("buffer", max(bytes_of_inputs, 4 * self.width))
            self.places = ("buffer", "buffer", "buffer")
        elif layout == "sums apart":
            self._memory("buffer", bytes_of_inputs)
            self._memory("sums", 4 * self.width)
            self.places = ("buffer", "buffer", "sums")
        else:
            self._memory("buffer", max(lanes_a, lanes_b if layout == "fed" else 1))
            self._memory("weights", lanes_b)
            self._memory("sums", 4 * self.width)
            self.places = ("buffer", "weights", "sums")
        self.lanes_a, self.lanes_b = lanes_a, lanes_b
        lanes_of_buffer = bytes_of_inputs if self.places[1] == "buffer" else lanes_a
        if layout == "fed":
            lanes_of_buffer = max(lanes_a, lanes_b)
        self._transfer("load", "buffer", "int8", lanes_of_buffer)
        if layout == "three":
            self._transfer("load_weights", "weights", "int8", lanes_b)
        if layout == "fed":
            axes = {"r": self._axis(self.most_rows), "e": self._axis(lanes_b)}
            operands = {
                "D": self._rows("weights", "int8", "r", "e"),
                "S": self._rows("buffer", "int8", "r", "e"),
            }
            self._add("move_weights", "move", "D[r,e] = S[r,e]", axes, operands=operands)

    def most_product_rows(self) -> int:
        return 8

    def _add_product(self) -> None:
        expression, weight_rows, weight_lanes = PRODUCTS[self.shape]
        a, b, c = self.places
        rows = self.most_product_rows() if "product" in self.shape else self.most_rows
        sizes = {"x": rows, "y": self.width, "z": self.depth}
        used = [axis for axis in sizes if axis in expression.replace("max", "")]
        # Fixed lanes read whole granules, and run-time ones exactly what there is.
        axes = {axis: self._axis(sizes[axis]) for axis in used}
        place_a: Table = (
            self._rows(a, "int8", "", "x") if "product" in self.shape
            else {"memory": a, "dtype": "int8", "rows": ["x"], "lanes": []}
            if self.shape == "row by element"
            else self._rows(a, "int8", "x" if "x" in used else "", "z")
        )  # fmt: skip
        if place_a["rows"] and self.chance(0.7):
            place_a["stride"] = {place_a["rows"][0]: "any"}
        place_b = self._rows(b, "int8", weight_rows, weight_lanes)
        place_c = self._rows(c, "int32", "x" if "x" in used else "", "y")
        if place_c["rows"] and self.chance(0.3):
            place_c["stride"] = {"x": "any"}
        operands = {"A": place_a, "B": place_b, "C": place_c}
        keys: Table = {"operands": operands}
        if a == b and self.memories[a]["banks"] > 1 and self.chance(0.4):
            keys["banks_differ"] = [["A", "B"]]
        if self.chance(0.3):
            keys["latency_cycles"] = 7
        self.begins_anew = self.chance(0.4)
        self._add("product", "array", expression, dict(axes), **keys)
        if self.begins_anew:
            self._add("first_product", "array", expression, dict(axes), **keys, accumulate=False)

    def _add_beginnings(self) -> None:
        """Add what begins sums: zeros, biases, or loads of sums."""
        sums = self.places[2]
        kinds = [kind for kind in ("zero", "load_bias", "load_sums") if self.chance(0.4)]
        if not kinds and not self.begins_anew:
            kinds = [self.draw.choice(["zero", "load_bias", "load_sums"])]
        if "zero" in kinds:
            axes = {"r": self._axis(self.most_rows), "e": self._axis(self.width)}
            place = self._rows(sums, "int32", "r", "e")
            self._add("zero", "vector", "D[r,e] = 0", axes, operands={"D": place})
        if "load_bias" in kinds:
            self._transfer_row("load_bias", sums)
        if "load_sums" in kinds:
            self._transfer("load_sums", sums, "int32", self.width)

    def _transfer_row(self, name: str, sums: str) -> None:
        axes = {"r": self._axis(self.most_rows), "e": self._axis(self.width)}
        operands = {
            "D": self._rows(sums, "int32", "r", "e"),
            "S": {"memory": "main", "dtype": "int32"},
        }
        self._add(name, "load", "D[r,e] = S[e]", axes, operands=operands)

    def _add_stores(self) -> None:
        """Add a store of sums, and in part stores or moves that make bytes of them."""
        sums = self.places[2]
        self._transfer("store_sums", sums, "int32", self.width, stores=True)
        self.makes_bytes = self.chance(0.6)
        if self.makes_bytes:
            self._register("scale", "float32", "store")
            text = self.draw.choice(["int8(S[r,e] * s[])", "int8(max(S[r,e] * s[], 0))"])
            self._transfer(
                "store_bytes", sums, "int32", self.width, stores=True, main_dtype="int8",
                statement=f"D[r,e] = {text}", operands={"s": {"memory": "scale"}},
            )  # fmt: skip

    def _add_extras(self) -> None:
        """Add in part element-wise instructions on bytes, with a store of them."""
        if not self.chance(0.4):
            return
        lanes = self.lanes_a if "product" not in self.shape else self.lanes_b
        lanes = min(lanes, self.memories["buffer"]["row_bytes"])
        self._transfer("store_buffer", "buffer", "int8", lanes, stores=True)
        axes = {"r": self._axis(self.most_rows), "e": self._axis(lanes)}
        place = self._rows("buffer", "int8", "r", "e")
        keys: Table = {"in_place": ["S"]} if self.chance() else {}
        self._add(
            "relu", "vector", "D[r,e] = max(S[r,e], 0)", dict(axes),
            operands={"D": place, "S": dict(place)}, **keys,
        )  # fmt: skip
        self._add(
            "add", "vector", "D[r,e] = int8(A[r,e] + B[r,e])", dict(axes),
            operands={"D": place, "A": dict(place), "B": dict(place)},
        )  # fmt: skip

    def _units(self) -> tuple[list[str], str, Table]:
        """Return units, synchronization and channels; kinds of work may share a unit."""
        kinds = list(dict.fromkeys(i["unit"] for i in self.instructions))
        count = self.draw.randint(1, len(kinds))
        names = [f"unit{n}" for n in range(count)]
        units = {k: names[n] if n < count else self.draw.choice(names) for n, k in enumerate(kinds)}
        for table in self.instructions:
            table["unit"] = units[table["unit"]]
        synchronization = self.draw.choice(["in_order", "interlocked", "channels"])
        channels: Table = {}
        if synchronization == "channels" and count > 1:
            depth = {"depth": self.draw.choice([2, 4, 16])} if self.chance() else {}
            channels["channels"] = [
                {"name": f"{a}_{b}", "from": a, "to": b, **depth}
                for a in names
                for b in names
                if a != b
            ]
        return names, synchronization, channels

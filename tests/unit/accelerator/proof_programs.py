"""Programs of tests: products, convolutions, chains and pooling on the systolic machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpembed.accelerator.program import (
    Address,
    Content,
    Issue,
    Loop,
    MainTensor,
    Meaning,
    Node,
    Program,
)
from cpembed.accelerator.specification import Specification, Statement
from cpembed.hw.isa import IMMEDIATE, InstructionSet
from cpembed.ir.index import IndexExpr, IndexTerm
from cpembed.ir.parser import parse_computation
from tests.unit.accelerator.machines import ANY, instruction, place, systolic

Array = np.ndarray[Any, Any]


def index(constant: int = 0, **coefficients: int) -> IndexExpr:
    """Return a sum of multiples of iterators."""
    return IndexExpr.sum([IndexTerm(n, c) for n, c in coefficients.items()], constant)


def alternating(step: int, counter: IndexExpr, buffers: int) -> IndexExpr:
    """Return ``step * (counter % buffers)``."""
    if buffers == 1:
        return IndexExpr()
    return IndexExpr((IndexTerm.digit(counter, coefficient=step, modulus=buffers),))


def nest(extents: Mapping[str, int], *body: Node) -> tuple[Node, ...]:
    """Return loops around a body."""
    for name, extent in reversed(list(extents.items())):
        body = (Loop(name, extent, tuple(body)),)
    return tuple(body)


@dataclass(frozen=True)
class Product:
    """A tiled product ``C[m,n] += A[m,k] * B[k,n]`` with its tiles in granules of 16."""

    m: int
    n: int
    k: int
    tile: tuple[int, int, int] = (1, 1, 1)
    buffers: int = 2
    with_bias: bool = False
    is_requantized: bool = False
    keeps_a: bool = False
    order: str = "mn"

    @property
    def counts(self) -> dict[str, int]:
        """Extent of each loop over tiles."""
        sizes = zip(("m0", "n0", "k0"), (self.m, self.n, self.k), self.tile, strict=True)
        return {name: -(-size // (16 * tile)) for name, size, tile in sizes}

    def specification(self, a: str = "A", c: str = "C") -> Specification:
        shape = {"m": self.m, "n": self.n, "k": self.k}
        sums = "S" if self.is_requantized else c
        dtypes = {a: "int8", "B": "int8", sums: "int32", "bias": "int32", c: "int32"}
        statements: list[Statement] = []
        if self.with_bias:
            statements.append(statement(f"{sums}[m,n] = bias[n]", {"m": self.m, "n": self.n},
                                        dtypes))  # fmt: skip
        statements.append(
            statement(f"{sums}[m,n] += {a}[m,k] * B[k,n]", shape, dtypes, self.with_bias)
        )
        if self.is_requantized:
            text = f"{c}[m,n] = int8(S[m,n] * 0.0078125)"
            statements.append(statement(text, {"m": self.m, "n": self.n}, dtypes | {c: "int8"}))
        generator = np.random.default_rng(self.m)
        constants: dict[str, Array] = {
            "B": generator.integers(-128, 128, (self.k, self.n)).astype(np.int8)
        }
        if self.with_bias:
            constants["bias"] = generator.integers(-999, 999, (self.n,)).astype(np.int32)
        return Specification("product", tuple(statements), (a,), (c,), constants)

    def tensors(self, a: str = "A", c: str = "C") -> dict[str, MainTensor]:
        dtype = "int8" if self.is_requantized else "int32"
        tensors = {
            a: MainTensor.dense(a, (self.m, self.k), "int8", "input"),
            "B": MainTensor.dense("B", (self.k, self.n), "int8", "constant"),
            c: MainTensor.dense(c, (self.m, self.n), dtype, "output"),
        }
        if self.with_bias:
            tensors["bias"] = MainTensor.dense("bias", (self.n,), "int32", "constant")
        return tensors

    def position(self, axis: str) -> IndexExpr:
        """First index of a granule along an axis."""
        tile = self.tile["mnk".index(axis)]
        return index(**{f"{axis}0": 16 * tile, f"{axis}i": 16})

    def size(self, axis: str) -> tuple[IndexExpr, ...]:
        extent = getattr(self, axis)
        return index(16), index(extent) + self.position(axis).times(-1)

    def guard(self, *axes: str) -> tuple[IndexExpr, ...]:
        return tuple(index(getattr(self, a) - 1) + self.position(a).times(-1) for a in axes)

    def body(self, first_statement: int = 0, a: str = "A", c: str = "C") -> tuple[Node, ...]:
        mt, nt, kt = self.tile
        counts = self.counts
        outer = {f"{axis}0": counts[f"{axis}0"] for axis in self.order}
        counter = index(k0=1, m0=counts["k0"] * counts["n0"], n0=counts["k0"])
        a_place = index(mi=16 * kt, ki=16) + alternating(16 * mt * kt, counter, self.buffers)
        if self.keeps_a:
            a_place = index(k0=16 * kt, ki=16, mi=16 * kt * counts["k0"])
        b_place = index(128, ki=16 * nt, ni=16) + alternating(16 * kt * nt, counter, self.buffers)
        c_place = index(mi=16 * nt, ni=16)
        number = first_statement
        load_a = nest({"mi": mt, "ki": kt}, Issue(
            "set_stride", {"D": Address(), "V": Address(index(self.k))}, note="stride of A"
        ), Issue(
            "mvin",
            {"D": Address(a_place), "S": Address(
                self.position("m").times(self.k) + self.position("k"), a)},
            {"r": self.size("m"), "e": self.size("k")},
            self.guard("m", "k"),
            contents=dict.fromkeys(("D", "S"), Content(
                a, (self.position("m") + index(r=1), self.position("k") + index(e=1)))),
            note="load A",
        ))  # fmt: skip
        load_b = nest({"ki": kt, "ni": nt}, Issue(
            "set_stride", {"D": Address(), "V": Address(index(self.n))}, note="stride of B"
        ), Issue(
            "mvin",
            {"D": Address(b_place), "S": Address(
                self.position("k").times(self.n) + self.position("n"), "B")},
            {"r": self.size("k"), "e": self.size("n")},
            self.guard("k", "n"),
            contents=dict.fromkeys(("D", "S"), Content(
                "B", (self.position("k") + index(r=1), self.position("n") + index(e=1)))),
            note="load B",
        ))  # fmt: skip
        sums = Content("S" if self.is_requantized else c, (
            self.position("m") + index(r=1), self.position("n") + index(e=1)))  # fmt: skip
        if self.with_bias:
            begin = Issue(
                "mvin_bias",
                {"D": Address(c_place), "S": Address(self.position("n"), "bias")},
                {"r": self.size("m"), "e": self.size("n")},
                self.guard("m", "n"),
                contents={"D": sums, "S": Content("bias", (sums.index[1],))},
                meaning=Meaning(number, {"m": sums.index[0], "n": sums.index[1]}),
                note="begin with bias",
            )
            number += 1
        else:
            begin = Issue(
                "zero",
                {"D": Address(c_place), "S": Address()},
                {"r": self.size("m")},
                self.guard("m", "n"),
                contents={"D": sums},
                note="begin with zero",
            )
        product = Issue(
            "matmul",
            {"A": Address(a_place), "B": Address(b_place), "C": Address(c_place)},
            {"x": self.size("m"), "y": self.size("n"), "z": self.size("k")},
            self.guard("m", "n", "k"),
            contents={
                "A": Content(a, (self.position("m") + index(x=1), self.position("k") + index(z=1))),
                "B": Content("B", (self.position("k") + index(z=1),
                                   self.position("n") + index(y=1))),
                "C": Content(sums.tensor, (self.position("m") + index(x=1),
                                           self.position("n") + index(y=1))),
            },
            meaning=Meaning(number, {
                "m": self.position("m") + index(x=1), "n": self.position("n") + index(y=1),
                "k": self.position("k") + index(z=1)}),
            note="multiply",
        )  # fmt: skip
        target = Address(
            self.position("m").times(self.n) + self.position("n"), c, strides={"r": self.n}
        )
        sizes = {"r": self.size("m"), "e": self.size("n")}
        if self.is_requantized:
            store = Issue(
                "mvout", {"D": target, "S": Address(c_place), "s": Address()}, sizes,
                self.guard("m", "n"),
                contents={"D": replace(sums, tensor=c), "S": sums},
                meaning=Meaning(number + 1, {"m": sums.index[0], "n": sums.index[1]}),
                note="requantize and store",
            )  # fmt: skip
        else:
            store = Issue(
                "mvout_full", {"D": target, "S": Address(c_place)}, sizes, self.guard("m", "n"),
                contents={"D": sums, "S": sums}, note="store",
            )  # fmt: skip
        multiply = nest({"mi": mt, "ni": nt, "ki": kt}, product)
        inner: tuple[Node, ...] = (*(() if self.keeps_a else load_a), *load_b, *multiply)
        tile_body: tuple[Node, ...] = (
            *nest({"mi": mt, "ni": nt}, begin),
            *nest({"k0": counts["k0"]}, *inner),
            *nest({"mi": mt, "ni": nt}, store),
        )
        if self.keeps_a:
            # Only under the order mn: A's panel stays for all tiles of columns.
            panel = nest({"k0": counts["k0"]}, *load_a)
            tile_loop = nest({"n0": counts["n0"]}, *tile_body)
            return nest({"m0": counts["m0"]}, *panel, *tile_loop)
        return nest(outer, *tile_body)

    def program(self, machine: InstructionSet | None = None) -> Program:
        body = self.body()
        if self.is_requantized:
            scale = Issue("set_scale", {"D": Address(), "V": Address(value=0.0078125)})
            body = (scale, *body)
        return Program("product", machine or systolic(), self.tensors(), body, self.specification())


def statement(
    text: str, extents: Mapping[str, int], dtypes: Mapping[str, str], accumulates: bool = False
) -> Statement:
    """Return a statement; ``dtypes`` may name more operands than it has."""
    names = {name for name in dtypes if f"{name}[" in text}
    return Statement(
        parse_computation(text, extents, dtypes={n: dtypes[n] for n in names}), accumulates
    )


def chain() -> Program:
    """Return two products, of which the second multiplies what the first one requantized."""
    first = Product(20, 24, 17, is_requantized=True)
    second = Product(20, 18, 24)
    rename = {"B": "B2", "C": "C2"}
    specification = first.specification()
    second_statement = statement(
        "C2[m,n] += C[m,k] * B2[k,n]", {"m": 20, "n": 18, "k": 24},
        {"C2": "int32", "C": "int8", "B2": "int8"},
    )  # fmt: skip
    weights = np.random.default_rng(5).integers(-128, 128, (24, 18)).astype(np.int8)
    scale = Issue("set_scale", {"D": Address(), "V": Address(value=0.0078125)})
    body = second.body(2, a="C", c="C2")
    body = tuple(_renamed(node, rename) for node in body)
    tensors = first.tensors()
    tensors["C"] = replace(tensors["C"], role="temporary")
    tensors["B2"] = MainTensor.dense("B2", (24, 18), "int8", "constant")
    tensors["C2"] = MainTensor.dense("C2", (20, 18), "int32", "output")
    both = Specification(
        "chain",
        (*specification.statements, second_statement),
        ("A",),
        ("C2",),
        {**specification.constants, "B2": weights},
    )
    return Program("chain", systolic(), tensors, (scale, *first.body(), *body), both)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Rename the tensor B of a product."""
    if isinstance(node, Loop):
        return replace(node, body=tuple(_renamed(n, names) for n in node.body))
    operands = {
        key: replace(address, tensor="B2") if address.tensor == "B" else address
        for key, address in node.operands.items()
    }
    contents = {
        key: replace(content, tensor="B2") if content.tensor == "B" else content
        for key, content in node.contents.items()
    }
    return replace(node, operands=operands, contents=contents)


def convolution(h: int = 6, w: int = 13, c: int = 16, k: int = 16) -> Program:
    """Return a padded 3x3 convolution; each row of the image is loaded once and read shifted."""
    extents = {"p": h, "q": w, "k": k, "r": 3, "s": 3, "c": c}
    computation = parse_computation(
        "O[p,q,k] += I[p + r - 1, q + s - 1, c] * W[r,s,c,k]", extents,
        dtypes={"I": "int8", "W": "int8", "O": "int32"}, shapes={"I": (h, w, c)},
        zero_outside=("I",),
    )  # fmt: skip
    weights = np.random.default_rng(1).integers(-128, 128, (3, 3, c, k)).astype(np.int8)
    specification = Specification(
        "convolution", (Statement(computation),), ("I",), ("O",), {"W": weights}
    )
    tensors = {
        "I": MainTensor("I", (h, w, c), "int8", (0, 1, 2), (1, 1, 0), (1, 1, 0), role="input"),
        "W": MainTensor.dense("W", (3, 3, c, k), "int8", "constant"),
        "O": MainTensor.dense("O", (h, w, k), "int32", "output"),
    }
    rows = w + 2
    weights_content = Content("W", (index(r0=1), index(s0=1), index(r=1), index(e=1)))
    load_weights = nest(
        {"r0": 3, "s0": 3},
        Issue(
            "mvin",
            {
                "D": Address(index(64, r0=48, s0=16)),
                "S": Address(index(r0=3 * c * k, s0=c * k), "W"),
            },
            {"r": (index(c),), "e": (index(k),)},
            contents=dict.fromkeys(("D", "S"), weights_content),
            note="load W",
        ),
    )
    slot = IndexExpr((IndexTerm.digit(index(p0=1), coefficient=16, modulus=3),))
    load_row = Issue(
        "mvin",
        {"D": Address(slot), "S": Address(index(p0=rows * c), "I")},
        {"r": (index(rows),), "e": (index(c),)},
        contents=dict.fromkeys(("D", "S"), Content("I", (index(-1, p0=1), index(-1, r=1),
                                                         index(e=1)))),
        note="load row",
    )  # fmt: skip
    row_slot = IndexExpr((IndexTerm.digit(index(-2, p0=1, r0=1), coefficient=16, modulus=3),))
    multiply = nest({"r0": 3, "s0": 3}, Issue(
        "matmul",
        {"A": Address(row_slot + index(s0=1)), "B": Address(index(64, r0=48, s0=16)),
         "C": Address()},
        {"x": (index(w),), "y": (index(k),), "z": (index(c),)},
        (index(-2, p0=1),),
        contents={
            "A": Content("I", (index(-3, p0=1, r0=1), index(-1, x=1, s0=1), index(z=1))),
            "B": Content("W", (index(r0=1), index(s0=1), index(z=1), index(y=1))),
            "C": Content("O", (index(-2, p0=1), index(x=1), index(y=1))),
        },
        meaning=Meaning(0, {
            "p": index(-2, p0=1), "q": index(x=1), "k": index(y=1), "r": index(r0=1),
            "s": index(s0=1), "c": index(z=1)}),
        note="multiply",
    ))  # fmt: skip
    sums = Content("O", (index(-2, p0=1), index(r=1), index(e=1)))
    zero = Issue("zero", {"D": Address(), "S": Address()}, {"r": (index(w),)},
                 contents={"D": sums}, note="begin with zero")  # fmt: skip
    store = Issue(
        "mvout_full",
        {"D": Address(index(-2 * w * k, p0=w * k), "O", strides={"r": k}), "S": Address()},
        {"r": (index(w),), "e": (index(k),)}, (index(-2, p0=1),),
        contents={"D": sums, "S": sums}, note="store",
    )  # fmt: skip

    def stride(value: int) -> Issue:
        return Issue("set_stride", {"D": Address(), "V": Address(index(value))})

    body = (
        stride(k), *load_weights, stride(c),
        Loop("p0", h + 2, (load_row, zero, *multiply, store)),
    )  # fmt: skip
    return Program("convolution", systolic(), tensors, body, specification)


def pooling(h: int = 8, w: int = 14, c: int = 16, *, begins_with: int | None = None) -> Program:
    """Return a 3x3 max-pooling with stride 2, begun anew or from a number."""
    machine = systolic()
    pool = instruction(
        "pool", "execute", "C[x,y] max= A[2*x + z, y]", {"x": (1, 7), "y": 16, "z": 3},
        {"A": place("scratchpad", "int8", "h y", rows="h", lanes="y", strides={"h": 1}),
         "C": place("scratchpad", "int8", "x y", rows="x", lanes="y", strides={"x": 1})},
    )  # fmt: skip
    first = replace(pool, name="pool_first", accumulates=False,
                    computation=replace(pool.computation, name="pool_first"))  # fmt: skip
    out = instruction(
        "mvout_byte", "store", "D[r,e] = S[r,e]", {"r": (1, 16), "e": (1, 16)},
        {"D": place("dram", "int8", "r e", strides={"r": ANY, "e": 1}),
         "S": place("scratchpad", "int8", "r e", rows="r", lanes="e", strides={"r": 1})},
    )  # fmt: skip
    begin = instruction(
        "fill_bytes", "execute", "D[r,e] = V[]", {"r": (1, 16), "e": 16},
        {"D": place("scratchpad", "int8", "r e", rows="r", lanes="e", strides={"r": 1}),
         "V": place(IMMEDIATE, "int8")},
    )  # fmt: skip
    added = {i.name: i for i in (pool, first, out, begin)}
    instructions = {**machine.instructions, **added}
    machine = replace(machine, instructions=instructions)
    p, q = h // 2, w // 2
    image = parse_computation(
        "O[p,q,c] max= I[2*p + r, 2*q + s, c]",
        {"p": p, "q": q, "c": c, "r": 3, "s": 3}, dtypes={"I": "int8", "O": "int8"},
    )  # fmt: skip
    specification = Specification("pooling", (Statement(image),), ("I",), ("O",), {})
    tensors = {
        "I": MainTensor.dense("I", (h + 1, w + 1, c), "int8", "input"),
        "O": MainTensor.dense("O", (p, q, c), "int8", "output"),
    }
    load = Issue(
        "mvin", {"D": Address(index(r0=16)), "S": Address(index(p0=2 * (w + 1) * c,
                                                                r0=(w + 1) * c), "I")},
        {"r": (index(w + 1),), "e": (index(c),)},
        contents=dict.fromkeys(("D", "S"), Content("I", (index(p0=2, r0=1), index(r=1),
                                                         index(e=1)))),
        note="load row",
    )  # fmt: skip

    def issue(name: str, row: IndexExpr, guards: tuple[IndexExpr, ...]) -> Issue:
        return Issue(
            name, {"A": Address(row.times(16)), "C": Address(index(100))},
            {"x": (index(q),)}, guards,
            contents={
                "A": Content("I", (index(p0=2) + row, index(h=1), index(y=1))),
                "C": Content("O", (index(p0=1), index(x=1), index(y=1))),
            },
            meaning=Meaning(0, {"p": index(p0=1), "q": index(x=1), "c": index(y=1),
                                "r": row, "s": index(z=1)}),
            note=name,
        )  # fmt: skip

    store = Issue(
        "mvout_byte",
        {"D": Address(index(p0=q * c), "O", strides={"r": c}), "S": Address(index(100))},
        {"r": (index(q),), "e": (index(c),)},
        contents=dict.fromkeys(("D", "S"), Content("O", (index(p0=1), index(r=1), index(e=1)))),
        note="store",
    )
    beginning: tuple[Issue, ...] = (issue("pool_first", index(), ()),)
    if begins_with is not None:
        number = Issue(
            "fill_bytes", {"D": Address(index(100)), "V": Address(index(begins_with))},
            {"r": (index(q),)}, contents={"D": Content("O", (index(p0=1), index(r=1), index(e=1)))},
            note="begin with a number",
        )  # fmt: skip
        beginning = (number, issue("pool", index(), ()))
    body = (
        Issue("set_stride", {"D": Address(), "V": Address(index(c))}),
        Loop("p0", p, (
            *nest({"r0": 3}, load),
            *beginning,
            *nest({"r1": 2}, issue("pool", index(1, r1=1), ())),
            store,
        )),
    )  # fmt: skip
    return Program("pooling", machine, tensors, body, specification)

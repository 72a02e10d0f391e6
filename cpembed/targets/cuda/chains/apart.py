"""Chains as kernels of their own for each product, where that is estimated to be faster.

The first product stores its result in global memory, a pointwise function as its epilogue; a
softmax is a kernel between, with a warp for each row. The result of either is the first factor of
the second product. Both products are those of a pair of embeddings with their own best schedules.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from cpembed.codegen.plan import buffer
from cpembed.codegen.pointwise import epilogue_of
from cpembed.codegen.values import literal
from cpembed.errors import LoweringError
from cpembed.targets.cuda import build
from cpembed.targets.cuda.build import CudaKernels, CudaText, Kernel, Tensor
from cpembed.targets.cuda.chains.pairs import Pair
from cpembed.targets.cuda.chains.pointwise import converted
from cpembed.targets.cuda.chains.row_keys import LOWEST, combine_lanes, masked_score, write_scaled
from cpembed.targets.cuda.emulator.executor import Launch
from cpembed.targets.cuda.epilogue import vector_parameter
from cpembed.targets.cuda.instructions import LANES
from cpembed.targets.cuda.lower import TiledProduct
from cpembed.targets.cuda.model import Gpu
from cpembed.targets.cuda.multistage.offsets import MAX_OFFSET
from cpembed.targets.cuda.multistage.schedule import Plan, ProductPlan
from cpembed.targets.cuda.target import CudaSpace
from cpembed.targets.cuda.warp_specialized import build as hopper_build
from cpembed.targets.cuda.warp_specialized.schedule import (
    SpecializedPlan,
    SpecializedProduct,
    SpecializedSchedule,
)
from cpembed.targets.cuda.warp_specialized.space import SpecializedSpace
from cpembed.targets.cuda.writer import Functions, Writer, register_pointer, thread_nest
from cpembed.workloads.chains import (
    END,
    LENGTHS,
    MASK,
    MIDDLE,
    SINKS,
    Pointwise,
    ProductChain,
    RowSoftmax,
)

SCORES, BETWEEN = "Scores", "Middle"
"""Buffers of the first product's result before a softmax, and of the second's first factor."""

ROWS = 8
"""Number of rows of a block of the softmax, one of each warp."""


@dataclass(frozen=True, eq=False)
class ApartPlan:
    """A plan of each product, with what is between them in global memory."""

    chain: ProductChain
    pair: Pair
    first_plan: ProductPlan
    second_plan: ProductPlan
    product_us: tuple[float, float]
    """Estimated time of each product, in microseconds."""

    @property
    def second(self) -> TiledProduct:
        return self.second_plan.product

    @property
    def copies_in_bulk(self) -> bool:
        """True if one of the products loads its factors by bulk copies."""
        return any(
            isinstance(plan, SpecializedPlan) for plan in (self.first_plan, self.second_plan)
        )

    @property
    def schedule_text(self) -> str:
        """Words of both schedules."""
        return f"{self.first_plan.schedule}; then {self.second_plan.schedule}"

    @cached_property
    def operands(self) -> tuple[Tensor, ...]:
        """Tensors that the kernels read, in their original layouts, by buffer."""
        tensors: list[Tensor] = []
        for plan, first, names in (
            (self.first_plan, MIDDLE, self._first_names),
            (self.second_plan, END, self._names),
        ):
            for tensor in CudaKernels(plan, CudaText("", ())).operands():
                name = _input_name(tensor.tensor, first)
                if name in self.chain.inputs:
                    tensors.append(replace(tensor, buffer=names(tensor.buffer), tensor=name))
        factors = {tensor.tensor for tensor in tensors}
        tensors += [
            Tensor(name, name, shape, dtype)
            for name, (shape, dtype) in self.chain.inputs.items()
            if name not in factors
        ]
        return tuple(tensors)

    @property
    def prepares(self) -> frozenset[str]:
        """Names of the kernels that pack weights."""
        names = set[str]()
        for plan, label in ((self.first_plan, "first"), (self.second_plan, "second")):
            names |= {f"{label}_{n}" for n in CudaKernels(plan, CudaText("", ())).prepares()}
        return frozenset(names)

    def _first_names(self, parameter: str) -> str:
        """Return the buffer of a parameter of the first product's kernels."""
        if parameter == "C":
            return SCORES if isinstance(self.chain.function, RowSoftmax) else BETWEEN
        return f"first_{parameter}"

    def _names(self, parameter: str) -> str:
        """Return the buffer of a parameter of the second product's kernels."""
        first = "A_original" if self.second_plan.packs(0) else "A"
        return {"C": "C", first: BETWEEN}.get(parameter, f"second_{parameter}")

    def text(self, architecture: str) -> CudaText:
        """Generate the kernels as CUDA C++, in the order in which they run.

        Raises :class:`~cpembed.errors.LoweringError` if TVM rejects them.
        """
        functions: Functions = {}
        maps = dict[str, Mapping[str, build.Viewed]]()
        for label, plan in (("first", self.first_plan), ("second", self.second_plan)):
            if isinstance(plan, SpecializedPlan):
                kernels = hopper_build.functions(plan)
                maps[f"{label}_product"] = hopper_build.tensor_maps(plan)
            else:
                assert isinstance(plan, Plan)
                kernels = build.functions(plan)
            for name, (writer, launch) in kernels.items():
                functions[f"{label}_{name}"] = (
                    writer,
                    replace(launch, kernel=f"{label}_{launch.kernel}"),
                )
            if label == "first" and isinstance(self.chain.function, RowSoftmax):
                functions["softmax"] = softmax_kernel(self.chain, self.chain.function)
        return self._renamed(functions, maps, architecture)

    def _renamed(
        self,
        functions: Functions,
        maps: Mapping[str, Mapping[str, build.Viewed]],
        architecture: str,
    ) -> CudaText:
        """Return the text with a name for each buffer, which kernels share."""
        rename = {"first": self._first_names, "second": self._names}
        text = build.generate(functions, architecture, maps)
        kernels = [
            Kernel(
                kernel.launch,
                tuple(
                    replace(p, name=rename[label](p.name)) if label in rename else p
                    for label in (kernel.launch.kernel.split("_", 1)[0],)
                    for p in kernel.parameters
                ),
            )
            for kernel in text.kernels
        ]
        return replace(text, kernels=tuple(kernels))


def _input_name(name: str, first: str) -> str:
    """Return a chain's input by its name among those of a product and its epilogue."""
    return f"{first}{vector_parameter(name)}" if name.startswith("@") else name


def plan_apart(chain: ProductChain, pair: Pair, gpu: Gpu) -> ApartPlan:
    """Plan the kernels of a chain's products, each with its own best schedule.

    Parameters
    ----------
    chain : ProductChain
    pair : Pair
    gpu : Gpu

    Raises
    ------
    LoweringError
        If one of the products has no schedule that fits, or what is between them is too large.
    """
    first, second = pair.first.product, pair.second.product
    if chain.first.output.elements > MAX_OFFSET:
        raise LoweringError(f"{chain.first.output.elements:,} elements between the products")
    if isinstance(chain.function, Pointwise):
        first = replace(first, epilogue=epilogue_of(chain.function, chain.factors))
    (first_plan, first_us), (second_plan, second_us) = (_best(p, gpu) for p in (first, second))
    return ApartPlan(chain, pair, first_plan, second_plan, (first_us, second_us))


def _best(product: TiledProduct, gpu: Gpu) -> tuple[ProductPlan, float]:
    """Return the plan of the smallest estimate, and its time in microseconds."""
    space = CudaSpace(product, gpu)
    if product.instruction.kind == "wgmma":
        space = SpecializedSpace(SpecializedProduct(product), gpu)
    best = space.best()
    if isinstance(best.schedule, SpecializedSchedule):
        return SpecializedPlan(SpecializedProduct(product), best.schedule), best.cost
    return Plan(product, best.schedule), best.cost


def softmax_kernel(chain: ProductChain, function: RowSoftmax) -> tuple[Writer, Launch]:
    """Return the kernel of a softmax of stored scores."""
    writer, shape = Writer(), chain.first.output.shape
    rows, blocks = math.prod(shape[:-1]), -(-math.prod(shape[:-1]) // ROWS)
    elements = chain.first.output.elements
    declared = [
        buffer(SCORES, elements, chain.first.output.dtype),
        *(
            buffer(name, math.prod(chain.inputs[name][0]), chain.inputs[name][1])
            for name in (LENGTHS, MASK, SINKS)
            if name in chain.inputs
        ),
        buffer(BETWEEN, elements, chain.factors),
    ]
    script = writer.script
    numbers = {"block": ("blockIdx.x", blocks), "thread": ("threadIdx.x", ROWS * LANES)}
    reads, writes = {SCORES: elements}, {BETWEEN: elements}
    with script.function(declared), thread_nest(script, "softmax", numbers, reads, writes):
        script.line(f"row = block * {ROWS} + thread // {LANES}")
        # All lanes of a warp, or none.
        with script.nested(f"if row < {rows}:"):
            _RowWriter(writer, chain, function).write()
    launch = Launch("softmax_kernel", (blocks, 1, 1), (ROWS * LANES, 1, 1))
    return writer, launch


class _RowWriter:
    """Writer of the softmax of a warp's row, in three passes over its scores."""

    def __init__(self, writer: Writer, chain: ProductChain, function: RowSoftmax) -> None:
        self.writer, self.script = writer, writer.script
        self.chain, self.function = chain, function
        self.sizes = dict(zip("bgrqk", chain.first.output.shape, strict=True))
        self.keys = self.sizes["k"]

    def write(self) -> None:
        script = self.script
        for name in ("top", "total", "value"):
            script.line(f'{name} = T.alloc_buffer((1,), "float32", scope="local")')
        script.lines((f"top[0] = {LOWEST}", "total[0] = T.float32(0)"))
        self._locate()
        sink = f"{SINKS}[g_row * {self.sizes['r']} + r_row]"
        if self.function.sinks:
            script.line(f"top[0] = {sink}")
        with self._turns("0"):
            script.line("top[0] = T.max(top[0], value[0])")
        self._combine("top[0]", "T.max(top[0], {})")
        # A row without any key: its powers are zero, not NaN.
        script.line(f"top[0] = T.Select(top[0] == {LOWEST}, T.float32(0), top[0])")
        if self.function.sinks:
            script.line(f"value[0] = {sink}")
            self._power()
            script.line(f"total[0] = T.Select(thread % {LANES} == 0, value[0], T.float32(0))")
        with self._turns("1"):
            self._power()
            script.line("total[0] = total[0] + value[0]")
        self._combine("total[0]", "total[0] + {}")
        script.line("total[0] = T.Select(total[0] == T.float32(0), T.float32(1), total[0])")
        with self._turns("2"):
            self._power()
            script.line("value[0] = value[0] / total[0]")
            with script.nested(f"if key2 < {self.keys}:"):
                weight = converted("value[0]", self.chain.factors)
                script.line(f"{BETWEEN}[row * {self.keys} + key2] = {weight}")

    def _locate(self) -> None:
        """Write the coordinates of the row, and the keys that it has."""
        script, function, inner = self.script, self.function, 1
        for name in "qrgb":
            script.line(f"{name}_row = T.truncmod(T.truncdiv(row, {inner}), {self.sizes[name]})")
            inner *= self.sizes[name]
        end = str(self.keys)
        if function.lengths:
            end = f"T.min({LENGTHS}[b_row], {end})"
        if function.causal is not None:
            end = f"T.min({end}, q_row + {function.causal + 1})"
        script.line(f"end_key = {end}")
        start = "0"
        if function.causal is not None and function.window is not None:
            start = f"q_row + {function.causal + 1 - function.window}"
        script.line(f"start_key = {start}")

    @contextmanager
    def _turns(self, number: str) -> Generator[None]:
        """Write the loop over a lane's keys, with the masked score in ``value``."""
        script, function, key = self.script, self.function, f"key{number}"
        with script.nested(f"for turn{number} in T.serial({-(-self.keys // LANES)}):"):
            script.line(f"{key} = turn{number} * {LANES} + thread % {LANES}")
            inside = f"{key} < {self.keys}"
            at = f"T.Select({inside}, row * {self.keys} + {key}, 0)"
            script.line(f"value[0] = {SCORES}[{at}]")
            write_scaled(script, function, "value[0]", f"capped{number}")
            visible = f"{key} < end_key and {key} >= start_key"
            names = {name: f"{name}_row" for name in "bgrq"} | {"k": key}
            masked_score(script, function, self.sizes, names, ("value[0]", visible, inside))
            yield

    def _power(self) -> None:
        script = self.script
        script.line(f"value[0] = (value[0] - top[0]) * {literal(math.log2(math.e), 'float32')}")
        self.writer.call("cpembed_exp2", register_pointer("value", "0"))

    def _combine(self, target: str, operation: str) -> None:
        masks = (1 << bit for bit in range(LANES.bit_length() - 1))
        combine_lanes(self.script, target, operation, masks)

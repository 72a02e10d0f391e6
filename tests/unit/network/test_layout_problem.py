"""In which layouts the operators of small networks can be executed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cpembed.codegen.epilogue import Epilogue, Residual
from cpembed.driver.matching import network_units
from cpembed.driver.named import workload
from cpembed.graph.graph import Graph, Operator
from cpembed.graph.kinds import Apply, Concat, Elementwise, Input, Pool, Product, TensorType
from cpembed.network.executions import Ports, ports_of
from cpembed.network.kernel_cache import Cache
from cpembed.network.layout import BLOCK, CandidateLayouts
from cpembed.network.layout_problem import (
    MOST_COMBINATIONS,
    ExecutionChoices,
    agrees,
)
from cpembed.network.product_kernels import ProductKernels

IMAGE = (1, 32, 8, 8)
CONVOLUTION = workload("conv2d n=1 c=32 h=8 w=8 k=32 r=3 s=3 pad=1 dtype=uint8,int8,int32")
WEIGHTS = np.ones((32, 32, 3, 3), np.int8)
SUM = Elementwise(Apply("add", (Input(0), Input(1))), "int32")


def ways(graph: Graph) -> ExecutionChoices:
    return ExecutionChoices(
        graph, CandidateLayouts(graph), ProductKernels(network_units("avx512_vnni"), Cache(None)), 1
    )


def product_ports(found: ExecutionChoices, operator: Operator) -> list[Ports]:
    assert isinstance(operator.kind, Product)
    pairs = found.of_products.requests(operator, operator.kind)
    return [ports for ports, _ in pairs]


def convolved(*operators: Operator, outputs: tuple[str, ...]) -> Graph:
    """Two images, the second padded by what reads it, and operators on them."""
    return Graph(
        "small",
        {"x": TensorType(IMAGE, "uint8")},
        outputs,
        {"w": WEIGHTS, "s": np.ones(32, np.float32)},
        (
            Operator("a", Product(CONVOLUTION, IMAGE, epilogue=Epilogue("uint8", scale=True)),
                     ("x", "w", "s"), ("y",)),
            Operator("b", Product(CONVOLUTION, IMAGE), ("y", "w"), ("z",)),
            *operators,
        ),
    )  # fmt: skip


def test_a_tensor_that_a_product_reads_twice_lies_in_one_place() -> None:
    """y is convolved, which asks for a halo, and added to the result; another convolution has other
    padding, which is not what that halo holds."""
    added = replace(Epilogue("uint8", scale=True), residual=Residual("uint8"))
    graph = convolved(outputs=("z",))
    operator = Operator(
        "c", Product(CONVOLUTION, IMAGE, epilogue=added, padding=3), ("y", "w", "s", "y"), ("r",)
    )
    first, other = graph.operators
    graph = replace(graph, operators=(first, operator, other), outputs=("r", "z"))
    found = ways(graph)
    assert found.layouts.fills["y"] == 3
    others = product_ports(found, other)
    assert others
    assert not any(ports[0].has_halo for ports in others)
    ports = product_ports(found, operator)
    assert ports
    for first, second, _ in ports:
        assert first == second
        # Padding that is not 0 has to be in memory.
        assert first.has_halo


def test_what_is_broadcast_to_an_image_lies_in_its_order() -> None:
    mean = Pool("max", (8, 8), (1, 1), (0, 0), (0, 0), (1, 1))
    graph = convolved(
        Operator("m", mean, ("z",), ("p",)), Operator("n", SUM, ("z", "p"), ("out",)),
        outputs=("out",),
    )  # fmt: skip
    found = ways(graph)
    broadcast = found._generated(graph.operators[-1])  # pyright: ignore[reportPrivateUsage]
    read = {way.ports[0] for way in broadcast}
    assert read == set(found.layouts.by_tensor["z"])
    for way in broadcast:
        image, scale, result = way.ports
        assert image.order == result.order
        assert agrees(scale, image)


def test_a_concatenation_of_many_images_has_few_ways() -> None:
    parts = tuple(f"p{k}" for k in range(20))
    copies = [Operator(name, Elementwise(Input(0), "uint8"), ("y",), (name,)) for name in parts]
    readers = [Operator(f"c{name}", Product(CONVOLUTION, IMAGE), (name, "w"), (f"o{name}",))
               for name in parts]  # fmt: skip
    joined = Operator("join", Concat(1), parts, ("out",))
    outputs = ("out", "z", *(f"o{name}" for name in parts))
    graph = convolved(*copies, *readers, joined, outputs=outputs)
    found = ways(graph)
    assert any(layout.has_halo for layout in found.layouts.by_tensor["p0"])
    joinings = found._generated(joined)  # pyright: ignore[reportPrivateUsage]
    assert 0 < len(joinings) <= MOST_COMBINATIONS * len(found.layouts.by_tensor["out"])
    assert {way.ports[-1].block for way in joinings} == {1, BLOCK}
    reads, writes = ports_of(graph, joined)
    assert all(len(way.ports) == len([*reads, *writes]) for way in joinings)

"""Size, time, cost and bound of the assignment of layouts, for synthetic networks.

Usage: ``python -m benchmarks.assignment [SHAPE …]``. A network has the graph of a published one;
the options of its nodes and their costs are drawn from a fixed seed: products have 8 to 16 options
over 6 to 12 layouts, everything else one option for each layout. ``reduced`` is solved as always,
``whole`` by the solver alone. Times are this process's own on the processor.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cpembed.errors import LoweringError
from cpembed.network.assignment import REDUCTIONS, Node, Option, Problem, Reductions, Tensor, assign

TIME_LIMIT = 40.0
SIZES = ((6, 8), (12, 16))
"""Number of layouts of each tensor, and maximum number of options of each product."""


@dataclass
class Drawing:
    """A network under construction.

    Each method adds a node and returns the tensor that it writes. Products of equal ``size`` have
    equal options.
    """

    seed: int
    layouts: int = 12
    options: int = 16
    nodes: list[Node] = field(default_factory=list[Node])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    options_by_kind: dict[object, tuple[Option, ...]] = field(
        default_factory=dict[object, tuple[Option, ...]]
    )

    def tensor(self, size: float, input_layout: int | None = None) -> str:
        rng = random.Random(f"tensor {self.seed} {size}")
        pairs = [(a, b) for a in range(self.layouts) for b in range(self.layouts) if a != b]
        conversion = {pair: size * rng.uniform(0.2, 1.0) for pair in pairs if rng.random() < 0.9}
        conversion |= {pair: size for pair in pairs if 0 in pair}
        name = f"t{len(self.tensors)}"
        names = tuple(f"L{k}" for k in range(self.layouts))
        self.tensors.append(Tensor(name, names, conversion, input_layout))
        return name

    def image(self, size: float = 1.0) -> str:
        return self.tensor(size, input_layout=0)

    def product(self, *reads: str, size: float = 1.0) -> str:
        """Add a convolution or a matrix product."""
        key = ("product", size, len(reads))
        if key not in self.options_by_kind:
            rng = random.Random(f"{self.seed} {key}")
            count = rng.randint(self.options // 2, self.options)
            self.options_by_kind[key] = tuple(
                Option(f"o{k}", self._ports(rng, len(reads) + 1), size * rng.uniform(2, 10))
                for k in range(count)
            )
        return self._node(key, reads, size)

    def through(self, *reads: str, size: float = 1.0) -> str:
        """Add an operator that takes any one layout, such as an addition or a concatenation."""
        key = ("through", size, len(reads))
        if key not in self.options_by_kind:
            rng = random.Random(f"{self.seed} {key}")
            self.options_by_kind[key] = tuple(
                Option(f"L{k}", (k,) * (len(reads) + 1), size * rng.uniform(0.1, 0.5))
                for k in range(self.layouts)
            )
        return self._node(key, reads, size)

    def problem(self) -> Problem:
        last = self.tensors[-1]
        self.tensors[-1] = Tensor(last.name, last.layouts, last.conversion, None, (0,))
        return Problem(tuple(self.nodes), tuple(self.tensors))

    def _ports(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(self.layouts) for _ in range(count))

    def _node(self, key: tuple[str, float, int], reads: tuple[str, ...], size: float) -> str:
        written = self.tensor(size)
        name = f"{key[0]}{len(self.nodes)}"
        self.nodes.append(Node(name, reads, (written,), self.options_by_kind[key]))
        return written


def resnet50(net: Drawing) -> None:
    """Draw ResNet-50."""
    x = net.through(net.product(net.image()))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        size = 1 / (stage + 1)
        for block in range(blocks):
            y = net.product(x, size=size)
            y = net.product(net.product(y, size=size * 0.9), size=size * 0.8)
            x = net.product(x, size=size * 0.7) if block == 0 else x
            x = net.through(x, y, size=size)
    net.product(net.through(x))


def inception(net: Drawing) -> None:
    """Draw GoogLeNet: four branches and a concatenation, nine times."""
    x = net.product(net.product(net.image()), size=0.9)
    for module in range(9):
        size = 1 / (module // 3 + 1)
        branches = [
            net.product(x, size=size),
            net.product(net.product(x, size=size * 0.9), size=size * 0.8),
            net.product(net.product(x, size=size * 0.7), size=size * 0.6),
            net.product(net.through(x, size=size), size=size * 0.5),
        ]
        x = net.through(*branches, size=size)
    net.product(x)


def bert(net: Drawing) -> None:
    """Draw BERT: twelve layers of attention and two products."""
    x, mask = net.product(net.image()), net.image(0.3)
    for _ in range(12):
        q, k, v = (net.product(x, size=0.9) for _ in range(3))
        scores = net.through(net.product(q, k, size=0.8), mask, size=0.5)
        y = net.product(net.product(net.through(scores), v, size=0.7))
        x = net.through(net.through(x, y, size=0.4))
        y = net.product(net.through(net.product(x, size=2.0), size=2.0), size=2.0)
        x = net.through(net.through(x, y, size=0.4))
    net.product(x)


def mobilenet(net: Drawing) -> None:
    """Draw MobileNet-V2: inverted residuals."""
    x = net.product(net.image())
    for block in range(17):
        size = 1 / (block // 4 + 1)
        y = net.product(net.product(x, size=size), size=size * 0.9)
        y = net.product(y, size=size * 0.8)
        x = net.through(x, y, size=size) if block % 4 else y
    net.product(x)


def shufflenet(net: Drawing) -> None:
    """Draw ShuffleNet: half of the channels pass a block as they are, then halves are mixed."""
    x = net.product(net.image())
    for block in range(16):
        size = 1 / (block // 6 + 1)
        left, right = net.through(x, size=size), net.through(x, size=size * 0.9)
        right = net.product(net.product(right, size=size), size=size * 0.8)
        x = net.through(net.through(left, net.product(right, size=size), size=size * 0.7))
    net.product(x)


def densenet(net: Drawing) -> None:
    """Draw DenseNet-121: each layer of a block reads the results of all layers before it."""
    x = net.product(net.image())
    for stage, layers in enumerate((6, 12, 24, 16)):
        size = 1 / (stage + 1)
        features = [x]
        for _ in range(layers):
            joined = net.through(*features, size=size) if len(features) > 1 else x
            features.append(net.product(net.product(joined, size=size), size=size * 0.5))
        x = net.product(net.through(*features, size=size * 2), size=size * 0.9)
    net.product(x)


def unet(net: Drawing) -> None:
    """Draw a U-Net: five levels down and up, with skips."""
    x, skips = net.image(), list[str]()
    for level in range(5):
        x = net.product(net.product(x, size=1 / (level + 1)), size=0.9 / (level + 1))
        skips.append(x)
        x = net.through(x, size=0.5 / (level + 1))
    for level, skip in reversed(list(enumerate(skips))):
        x = net.through(net.product(x, size=0.8 / (level + 1)), skip, size=0.7 / (level + 1))
        x = net.product(net.product(x, size=0.6 / (level + 1)), size=0.5 / (level + 1))
    net.product(x)


def hrnet(net: Drawing) -> None:
    """Draw HRNet: four resolutions side by side, each of which reads all of them repeatedly."""
    xs = [net.product(net.image(), size=1 / (k + 1)) for k in range(4)]
    for _ in range(6):
        ys = [net.product(net.product(x, size=1 / (k + 1)), size=0.9) for k, x in enumerate(xs)]
        xs = [
            net.through(*(net.product(y, size=0.5 / (k + 1)) for y in ys), size=1 / (k + 1))
            for k in range(4)
        ]
    net.product(net.through(*xs))


SHAPES: dict[str, Callable[[Drawing], None]] = {
    "ResNet-50": resnet50,
    "Inception": inception,
    "BERT": bert,
    "MobileNet": mobilenet,
    "ShuffleNet": shufflenet,
    "U-Net": unet,
    "DenseNet-121": densenet,
    "HRNet": hrnet,
}


def drawn(shape: str, layouts: int = 12, options: int = 16, seed: int = 0) -> Problem:
    """Return a network of a shape, the same for the same numbers.

    Parameters
    ----------
    shape : str
        Key of :data:`SHAPES`.
    layouts, options : int
        Numbers as in :data:`SIZES`.
    seed : int
        Seed of the drawing.
    """
    net = Drawing(seed, layouts, options)
    SHAPES[shape](net)
    return net.problem()


def line(problem: Problem, reductions: Reductions | None) -> str:
    """Return the effort and the result of an assignment."""
    started = time.process_time()
    try:
        assignment = assign(problem, time_limit=TIME_LIMIT, reductions=reductions)
    except LoweringError as error:
        return str(error)
    seconds = time.process_time() - started
    return (
        f"{assignment.solver_entries:9,} entries left to the solver  {seconds:7.2f} s  "
        f"cost {assignment.cost:9.3f}  "
        f"bound {assignment.bound:9.3f}  gap {assignment.gap:7.2%}  "
        f"{'proven' if assignment.proven else 'not proven'}"
    )


def main() -> None:
    """Run the command."""
    for shape in sys.argv[1:] or SHAPES:
        for layouts, options in SIZES:
            problem = drawn(shape, layouts, options)
            print(f"{shape}: {len(problem.nodes)} nodes, {layouts} layouts, {options} options")
            print(f"  reduced {line(problem, REDUCTIONS)}", flush=True)
            print(f"  whole   {line(problem, None)}", flush=True)


if __name__ == "__main__":
    main()

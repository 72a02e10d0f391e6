"""Every operator that is known, beside PyTorch's own."""

import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.operators import HANDLERS  # noqa: E402
from tests.unit.frontends.torch.comparing import Function, compared  # noqa: E402
from tests.unit.frontends.torch.inputs import Case  # noqa: E402
from tests.unit.frontends.torch.movement_cases import INDEXING, MOVEMENT  # noqa: E402
from tests.unit.frontends.torch.pointwise_cases import (  # noqa: E402
    ACTIVATIONS,
    ARITHMETIC,
    UNARY,
)
from tests.unit.frontends.torch.product_cases import (  # noqa: E402
    NORMALIZATION,
    PRODUCTS,
    REDUCTIONS,
    WINDOWS,
)

aten = torch.ops.aten

CASES: dict[str, Case] = {
    f"{group} {name}": case
    for group, cases in {
        "unary": UNARY,
        "activation": ACTIVATIONS,
        "arithmetic": ARITHMETIC,
        "movement": MOVEMENT,
        "indexing": INDEXING,
        "reduction": REDUCTIONS,
        "window": WINDOWS,
        "normalization": NORMALIZATION,
        "product": PRODUCTS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.quick(40)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_pytorch_computes(name: str) -> None:
    function, inputs = CASES[name]
    compared(Function(function), *inputs)


@pytest.mark.quick(6)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_in_core_aten(name: str) -> None:
    function, inputs = CASES[name]
    compared(Function(function), *inputs, core=True)


def test_operators_that_are_known_exist() -> None:
    for name in HANDLERS:
        space, operator, overload = name.split(".")
        if space == "aten":
            assert hasattr(getattr(aten, operator), overload), name

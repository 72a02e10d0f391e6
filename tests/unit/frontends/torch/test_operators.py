"""Every operator that is known, beside PyTorch's own."""

import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.operators import HANDLERS  # noqa: E402
from tests.unit.frontends.torch.comparing import Function, compared  # noqa: E402
from tests.unit.frontends.torch.inputs import Case  # noqa: E402
from tests.unit.frontends.torch.movement_cases import (  # noqa: E402
    INDEXING,
    MOVEMENT,
    SCATTERING,
    SORTING,
)
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
        "sorting": SORTING,
        "scattering": SCATTERING,
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


F = torch.nn.functional
SPECIAL: dict[str, Case] = {
    **{
        f"{mode} by {scale}": (
            lambda x, mode=mode, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode),
            (torch.arange(2.0 * 10 * 7).reshape(1, 2, 10, 7),),
        )
        for mode in ("nearest", "nearest-exact")
        for scale in (1.3, 0.7, 2.6, (0.31, 3.0))
    },
    "softmax of a scalar": (lambda x: (x.softmax(0), x.log_softmax(-1)), (torch.tensor(3.0),)),
    "a row that is masked": (
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, attn_mask=mask),
        (torch.randn(1, 2, 3, 4), torch.tensor([[True] * 3, [False] * 3, [True, False, True]])),
    ),
    "nothing": (
        lambda x: (torch.cat([x[:, :0], x[:, 4:]], 1), x[:0].roll(1, 0), x[:0] @ x.t()),
        (torch.randn(3, 4),),
    ),
    "quotients": (
        lambda a, b: (a // b, a % b, torch.fmod(a, b), a.div(b, rounding_mode="trunc")),
        (torch.tensor([1.0, -1.0, 7.5, -7.5, 3.0]), torch.tensor([0.1, 0.1, -2.5, 2.0, 0.0])),
    ),
    "quotients of integers": (
        lambda a, b: (a // b, a % b, torch.fmod(a, b), a.div(b, rounding_mode="trunc")),
        (torch.tensor([7, -7, 7, -7, 1 << 60]), torch.tensor([2, 2, -2, -2, 3])),
    ),
    "near 0": (
        lambda x: (1e9 * x.expm1(), 1e9 * x.log1p(), 1e9 * F.elu(-x)),
        (torch.tensor([1e-9, 3e-8, -2e-9]),),
    ),
    "windows": (
        lambda x: (
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, (2, 3), (3, 2), (1, 0), ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        ),
        (torch.randn(1, 2, 8, 7),),
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_was_once_read_wrongly(name: str) -> None:
    function, inputs = SPECIAL[name]
    compared(Function(function), *inputs)


def test_operators_that_are_known_exist() -> None:
    for name in HANDLERS:
        space, operator, overload = name.split(".")
        if space == "aten":
            assert hasattr(getattr(aten, operator), overload), name

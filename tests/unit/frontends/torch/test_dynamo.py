"""torch.compile: parts with products become networks, the rest stays with PyTorch."""

import gc
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

from cpembed.errors import (  # noqa: E402
    BackendUnavailable,
    CpembedError,
    LoweringError,
    ModelError,
)
from cpembed.frontends.torch import dynamo, summary  # noqa: E402
from cpembed.graph.family import Family  # noqa: E402
from cpembed.graph.graph import Graph, evaluate  # noqa: E402
from cpembed.graph.kinds import Product  # noqa: E402
from tests.unit.frontends.torch import models  # noqa: E402
from tests.unit.frontends.torch.comparing import Function  # noqa: E402
from tests.unit.frontends.torch.quantizing import quantized  # noqa: E402

nn = torch.nn


class Evaluated:
    """A network run by its definition, in place of a compiled one."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.runs = graph, 0

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        return evaluate(self.graph, inputs, keep=lambda name: False)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Evaluated]:
    """The networks that are compiled."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    found: list[Evaluated] = []

    def compile_network(graph: Graph, options: dynamo.Options) -> Evaluated:
        found.append(Evaluated(graph))
        return found[-1]

    def compile_ranges(family: Family, options: dynamo.Options) -> Any:
        raise ModelError("no ranges")

    monkeypatch.setattr(dynamo, "compile_network", compile_network)
    monkeypatch.setattr(dynamo, "compile_ranges", compile_ranges)
    return found


def by(model: nn.Module, **options: Any) -> Any:
    given = {"rest": "eager", **options}
    return torch.compile(model, backend=dynamo.backend, options=given, dynamic=False)


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=tolerance)


class Mixed(nn.Module):
    """Two quantized parts with an operator between them that no network has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = models.InvertedResidual(), nn.Conv2d(8, 4, 3)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        ordered = torch.special.bessel_j0(y)
        return self.second(ordered + y), ordered


def test_a_quantized_model_is_one_network(compiled: list[Evaluated]) -> None:
    x = torch.randn(1, 3, 32, 32)
    model = quantized(models.seeded(models.ResNet(4)), x)
    fast = by(model)
    with torch.no_grad():
        for fresh in (x, torch.randn_like(x)):
            # Where a rounding is a tie, an integer may be the next one.
            assert_same(fast(fresh), model(fresh), 0.01)
    (network,) = compiled
    assert network.runs == 2
    assert len([o for o in network.graph.operators if isinstance(o.kind, Product)]) == 16
    assert len(network.graph.inputs) == 1


def test_what_is_no_network_runs_between_networks(compiled: list[Evaluated]) -> None:
    x = torch.randn(1, 8, 6, 6)
    model = quantized(models.seeded(Mixed()), x)
    fast = by(model)
    with torch.no_grad():
        assert_same(fast(x), model(x))
    assert [network.runs for network in compiled] == [1, 1]
    products = [o for n in compiled for o in n.graph.operators if isinstance(o.kind, Product)]
    assert len(products) == 4


@pytest.mark.slow
def test_inductor_runs_what_is_no_network(compiled: list[Evaluated]) -> None:
    x = torch.randn(1, 8, 6, 6)
    model = quantized(models.seeded(Mixed()), x)
    fast = by(model, rest="inductor")
    with torch.no_grad():
        assert_same(fast(x), model(x))
    assert len(compiled) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float_model_is_a_network(compiled: list[Evaluated], dtype: Any) -> None:
    model = models.seeded(models.InvertedResidual()).to(dtype)
    x = torch.randn(1, 8, 6, 6).to(dtype)
    with torch.no_grad():
        mine = by(model, fallback="error")(x)
        assert mine.dtype is dtype
        # Sums of bfloat16 are rounded at other places than PyTorch's.
        tolerance = 1e-5 if dtype is torch.float32 else 0.05
        assert_same(mine.float(), model(x).float(), tolerance)
    assert len(compiled) == 1


def test_gradients_are_left_to_pytorch(compiled: list[Evaluated]) -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.warns(dynamo.FallbackWarning, match="gradients are recorded"):
        by(model)(x).sum().backward()
    assert model.weight.grad is not None
    assert not compiled
    (part,) = summary().modules[-1].parts
    assert (part.name, part.calls) == ("PyTorch", 1)


def test_frozen_parameters_need_no_gradients(compiled: list[Evaluated]) -> None:
    model, x = nn.Linear(4, 3).requires_grad_(False), torch.randn(2, 4)
    assert_same(by(model)(x), model(x))
    assert len(compiled) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(compiled: list[Evaluated], dynamic: bool | None) -> None:
    """Dynamo opens a size that changed; a network is compiled for each that occurs."""

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 36, 5)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return self.linear(y.reshape(x.shape[0], -1)) * x.shape[0]

    model = Flattened().eval()
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=dynamic)
    with torch.no_grad():
        for batch in (2, 3, 5, 3, 2):
            x = torch.randn(batch, 3, 6, 6)
            assert_same(fast(x), model(x))
    batches = [n.graph.types[n.graph.outputs[0]].shape[0] for n in compiled]
    assert set(batches) == {2, 3, 5}
    # Dynamo captures the first batch once as it is, and once more with an open size.
    assert len(batches) <= (3 if dynamic else 4)
    assert sum(network.runs for network in compiled) == 5


def test_sizes_beyond_the_limit_run_by_pytorch(
    compiled: list[Evaluated], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "MOST_SIGNATURES", 2)
    model = nn.Linear(4, 3).eval()
    fast = torch.compile(model, backend=dynamo.backend, options={"rest": "eager"}, dynamic=True)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (2, 3, 4, 5):
            x = torch.randn(rows, 4)
            assert_same(fast(x), model(x))
    assert len(compiled) == 2
    (text,) = [str(w.message) for w in caught if w.category is dynamo.FallbackWarning]
    assert "2 other sizes" in text


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_that_pytorch_fuses(
    compiled: list[Evaluated], norm_first: bool, activation: str
) -> None:
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation
    ).eval()
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False, True, False, False, True]])
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    fast = by(layer, fallback="error")
    masks: list[dict[str, Any]] = [{}, {"src_key_padding_mask": padding}, {"src_mask": causal}]
    masks.append({**masks[1], **masks[2]})
    with torch.no_grad():
        for mask in masks:
            assert_same(fast(x, **mask), layer(x, **mask))
    assert len(compiled) == len(masks)


def test_an_attention_that_pytorch_fuses(compiled: list[Evaluated]) -> None:
    attention, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), torch.randn(2, 5, 16)
    fast = by(attention, fallback="error")
    with torch.no_grad():
        for needs_weights in (True, False):
            mine, reference = (f(x, x, x, need_weights=needs_weights) for f in (fast, attention))
            assert_same(mine[0], reference[0])
            assert (mine[1] is None) == (reference[1] is None)
            if needs_weights:
                assert_same(mine[1], reference[1])
    assert compiled


def test_the_summary_tells_parts_reasons_and_times(compiled: list[Evaluated]) -> None:
    x = torch.randn(1, 8, 6, 6)
    model = models.seeded(Mixed())
    fast = by(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", dynamo.FallbackWarning)
        for _ in range(3):
            fast(x)
    module = summary().modules[-1]
    networks = [part for part in module.parts if part.is_network]
    (rest,) = [part for part in module.parts if not part.is_network]
    assert module.inputs == ("float32[1, 8, 6, 6]",)
    assert [part.calls for part in networks] == [3, 3]
    assert all(part.seconds > 0 for part in module.parts)
    assert rest.operators["aten.special_bessel_j0.default"] == 1
    assert "the operator is not known" in rest.reasons
    text, document = str(summary()), summary().to_json()
    assert "network_1" in text
    assert "aten.special_bessel_j0.default" in text
    assert document["networks"] == summary().networks >= 2
    # The summary ends with the compiled model.
    before = len(summary().modules)
    del fast, module
    torch._dynamo.reset()
    gc.collect()
    assert len(summary().modules) < before


def test_a_target_that_cannot_be_called_from_python_is_an_error() -> None:
    with pytest.raises(CpembedError, match="vta_1x16x16 cannot be called in this process"):
        dynamo.Options.checked({"target": "vta_1x16x16"})


def test_a_machine_that_compiles_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()

    def unavailable(graph: Graph, options: dynamo.Options) -> Any:
        raise BackendUnavailable("no C compiler: install one")

    monkeypatch.setattr(dynamo, "compile_network", unavailable)
    with torch.no_grad(), pytest.raises(BackendUnavailable, match="install one"):
        by(nn.Linear(4, 3))(torch.randn(2, 4))


def test_weights_that_change_are_read_again(compiled: list[Evaluated]) -> None:
    x = torch.randn(2, 5)
    model = quantized(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), x)
    fast = by(model)
    bias = next(p for name, p in model.named_parameters() if name.endswith("bias"))
    with torch.no_grad():
        assert_same(fast(x), model(x))
        before = fast(x)
        bias.add_(1.0)
        assert_same(fast(x), model(x))
        assert not torch.equal(before, fast(x))
    assert [network.runs for network in compiled] == [2, 2]


def test_other_shapes_are_other_networks(compiled: list[Evaluated]) -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-9, 9, (3, 5), dtype=torch.int8))

        def forward(self, x: Any) -> Any:
            q8 = torch.ops.quantized_decomposed
            q = q8.quantize_per_tensor(x, 0.1, 7, 0, 255, torch.uint8)
            a = q8.dequantize_per_tensor(q, 0.1, 7, 0, 255, torch.uint8)
            w = q8.dequantize_per_tensor(self.weight, 0.2, 0, -128, 127, torch.int8)
            return nn.functional.linear(a, w)

    model = Quantized().eval()
    fast = by(model)
    with torch.no_grad():
        for rows in (2, 6):
            x = torch.randn(rows, 5)
            assert_same(fast(x), model(x))
    assert [n.graph.types[n.graph.outputs[0]].shape for n in compiled] == [(2, 3), (6, 3)]


def test_a_part_that_is_not_compiled_stays_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)

    def refuse(graph: Graph, options: dynamo.Options) -> Any:
        raise LoweringError("nothing compiles this")

    monkeypatch.setattr(dynamo, "compile_network", refuse)
    x = torch.randn(1, 8, 6, 6)
    model = quantized(models.seeded(Mixed()), x)
    with torch.no_grad():
        assert_same(by(model)(x), model(x))


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"tarjet": "x"}, "has no 'tarjet'"),
    ({"rest": "llvm"}, "rest='llvm'"),
    ({"fallback": "silent"}, "fallback='silent'"),
    ({"threads": 0}, "threads=0"),
    ({"threads": True}, "threads=True"),
    ({"threads": "2"}, "threads='2'"),
    ({"target": 7}, "target=7"),
    ({"target": "typo"}, "typo"),
    ({"target": "vta_1x16x16.toml.missing"}, "vta_1x16x16"),
]


@pytest.mark.parametrize("options, message", OPTIONS)
def test_options_that_do_not_exist(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CpembedError, match=message) as caught:
        dynamo.Options.checked(options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("options", [{"target": "typo"}, {"rest": "llvm"}])
def test_a_wrong_option_ends_the_call(options: dict[str, str], grad: bool) -> None:
    torch._dynamo.reset()
    fast = torch.compile(nn.Linear(4, 3), backend="cpembed", options=options)
    with (
        torch.set_grad_enabled(grad),
        pytest.raises(
            torch._dynamo.exc.BackendCompilerFailed, match=next(iter(options.values()))
        ) as caught,
    ):
        fast(torch.randn(2, 4))
    assert isinstance(caught.value.inner_exception, CpembedError)


def test_a_target_that_is_not_executed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpembed.targets.registry.missing_for", lambda spec: ("a feature",))
    with pytest.raises(CpembedError, match="not executed here: a feature"):
        dynamo.Options.checked({"target": "avx512_vnni"})


def test_what_pytorch_runs_is_said_once(compiled: list[Evaluated]) -> None:
    x = torch.randn(1, 8, 6, 6)
    model = quantized(models.seeded(Mixed()), x)
    fast = by(model)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fast(x)
        fast(x)
    (said,) = [str(w.message) for w in caught if w.category is dynamo.FallbackWarning]
    assert "\n" not in said
    assert "aten.special_bessel_j0.default: the operator is not known" in said


def test_a_network_without_a_rest_says_nothing(compiled: list[Evaluated]) -> None:
    x = torch.randn(2, 5)
    model = quantized(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", dynamo.FallbackWarning)
        by(model, fallback="error")(x)
    assert len(compiled) == 1


@pytest.mark.parametrize(
    "make, grad, options, reason",
    [
        (lambda: Function(lambda x: x.relu()), False, {}, "no product or convolution"),
        (lambda: nn.Linear(4, 3), True, {}, "gradients are recorded"),
        (
            lambda: Function(torch.special.bessel_j0),
            False,
            {},
            "aten.special_bessel_j0.default",
        ),
    ],
)
def test_a_fallback_can_be_an_error(
    compiled: list[Evaluated], make: Any, grad: bool, options: dict[str, Any], reason: str
) -> None:
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(grad):
        with pytest.warns(dynamo.FallbackWarning, match=reason):
            by(make(), **options)(x)
        torch._dynamo.reset()
        with pytest.raises(Exception, match=reason):
            by(make(), fallback="error", **options)(x)


def test_a_part_that_is_not_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()

    def refuse(graph: Graph, options: dynamo.Options) -> Any:
        raise LoweringError("nothing compiles this")

    monkeypatch.setattr(dynamo, "compile_network", refuse)
    x = torch.randn(2, 5)
    model = quantized(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), x)
    with torch.no_grad(), pytest.warns(dynamo.FallbackWarning, match="nothing compiles this"):
        by(model)(x)


def test_the_target_without_a_name_is_one_that_this_processor_executes() -> None:
    from cpembed.targets.registry import missing_for, native_target

    assert dynamo.Options().target == "native"
    try:
        spec = native_target()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assert not missing_for(spec)


def test_the_entry_point_names_the_back_end() -> None:
    import importlib
    import tomllib

    text = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]
    module, name = points["cpembed"].split(":")
    assert getattr(importlib.import_module(module), name) is dynamo.backend


def test_a_module_without_parameters(compiled: list[Evaluated]) -> None:
    model, x = Function(lambda x: x.relu() + 1), torch.randn(3)
    with torch.no_grad():
        assert_same(by(model)(x), model(x))
    assert not compiled


@pytest.mark.slow
def test_a_network_that_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By this processor's own instruction; results of earlier calls stay as they are."""
    pytest.importorskip("cpembed.network.build")
    from cpembed.targets.registry import native_target

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    try:
        target = native_target().name
    except BackendUnavailable as error:
        pytest.skip(str(error))
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1))
    images = [torch.randn(1, 8, 8, 8) for _ in range(3)]
    reference = quantized(model, images[0])
    networks: list[Graph] = []
    compile_network = dynamo.compile_network

    def recorded(graph: Graph, options: dynamo.Options) -> Any:
        networks.append(graph)
        return compile_network(graph, options)

    monkeypatch.setattr(dynamo, "compile_network", recorded)
    fast = by(reference, target=target, threads=1)
    with torch.no_grad():
        found = [fast(image) for image in images]
        for mine, image in zip(found, images, strict=True):
            assert_same(mine, reference(image), 0.02)
    assert len(networks) == 1

"""What is not read, and what is said of it: one line, with its place and the remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cpembed.errors import ModelError  # noqa: E402
from cpembed.frontends import load_model  # noqa: E402
from cpembed.frontends.torch import from_exported, nodes  # noqa: E402
from cpembed.frontends.torch.operators import HANDLERS  # noqa: E402
from tests.unit.frontends.torch.archives import PROGRAM, Members, changed, saved  # noqa: E402
from tests.unit.frontends.torch.comparing import Function  # noqa: E402

nn, F = torch.nn, torch.nn.functional
IMAGE = torch.randn(2, 3, 5, 7)


def refused(model: nn.Module, *inputs: Any, **options: Any) -> str:
    program = torch.export.export(model, inputs, **options)
    with pytest.raises(ModelError) as caught:
        from_exported(program, name="net")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("net: ")
    return message


@pytest.mark.parametrize(
    "function, parts",
    [
        (
            lambda x: torch.special.bessel_j0(x) + torch.special.bessel_j0(x),
            ["aten.special_bessel_j0.default", "2 times"],
        ),
        (lambda x: torch.fft.fft(x).real, ["aten._fft_r2c.default"]),
        (lambda x: x + torch.rand_like(x), ["rand", "not known"]),
        (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"), ["recompute_scale_factor"]),
        (lambda x: F.dropout(x, 0.5, True), ["model.eval()"]),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), ["model.eval()"]),
        (lambda x: F.avg_pool2d(x.long(), 2), ["means of integers"]),
        (lambda x: x.long() ** x.long(), ["exponent may be below 0"]),
        (
            lambda x: torch.addbmm(x.long()[0, 0, 0, 0], x.long()[0], x.long()[0].mT, alpha=0.2),
            ["output 0 is int64, but float32", "convert its inputs"],
        ),
        (lambda x: F.interpolate(x.byte(), scale_factor=2, mode="bilinear"), ["uint8"]),
        (lambda x: F.batch_norm(x, None, None, training=True), ["model.eval()"]),
        (lambda x: x.to(torch.float8_e4m3fn).float(), ["float8_e4m3fn"]),
        (
            lambda x: torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)[1],
            ["is no tensor that a network computes"],
        ),
    ],
)
def test_an_operator_that_is_not_read(function: Callable[..., Any], parts: list[str]) -> None:
    message = refused(Function(function), IMAGE)
    for part in parts:
        assert part in message


def test_an_argument_that_nothing_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a handler forgets is refused, where it is not what the schema has by default."""
    forgetful = {**HANDLERS, "aten.clamp.default": lambda call: call["self"]}
    monkeypatch.setattr(nodes, "HANDLERS", forgetful)
    message = refused(Function(lambda x: x.clamp(None, 0.5)), IMAGE)
    assert "the argument max=0.5 is not known" in message


def test_an_operator_is_named_with_its_module() -> None:
    class Inner(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(x)

    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU(), Inner()))
    assert "net: 1.1/special_bessel_j0: the operator aten.special_bessel_j0.default" in refused(
        model, IMAGE
    )


def test_a_size_that_is_left_open() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    message = refused(nn.ReLU(), IMAGE, dynamic_shapes=({0: batch},))
    assert "input input: axis 0 has no fixed size" in message
    assert "dynamic_shapes" in message


def test_a_buffer_that_changes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.calls.add_(1)
            return x * self.calls

    assert "changes calls" in refused(Counting(), IMAGE)


def test_an_input_that_changes() -> None:
    assert "changes inputs_0" in refused(Function(lambda x: x.add_(1)), IMAGE.clone())


def test_a_complex_input() -> None:
    assert "is of complex64" in refused(Function(lambda x: x.real), torch.ones(2, 3) + 1j)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"not an archive" * 99])
def test_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"is no program of torch\.export\.save"):
        load_model(path)


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(5, 3), (torch.randn(2, 5),)), path)
    whole = path.read_bytes()
    for end in range(0, len(whole), len(whole) // 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError, match="is no program"):
            load_model(path)


def test_a_file_that_names_a_function(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.pt2", Function(lambda x: x.relu()), IMAGE)

    def change(members: Members) -> None:
        content = members[PROGRAM].replace(b"torch.ops.aten.relu.default", b"torch.is_tensor")
        members[PROGRAM] = content

    changed(path, change)
    with pytest.raises(ModelError, match="is_tensor"):
        load_model(path)


def test_a_file_with_sizes_that_are_left_open(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    shapes = ({0: torch.export.Dim("batch", min=2, max=8)},)
    torch.export.save(torch.export.export(nn.ReLU(), (IMAGE,), dynamic_shapes=shapes), path)
    with pytest.raises(ModelError, match="dimension 0 of input input is left open"):
        load_model(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        load_model(tmp_path / "model.pt2")

"""When a model's parameters are taken anew: what tells that they are others, or were written to."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends.torch.dynamo import State  # noqa: E402


def parameter(value: float) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full((64, 64), value))


def test_a_parameter_at_the_address_of_one_that_is_gone_is_another() -> None:
    # Memory that outlives both parameters, so that the second is at the address of the first.
    memory = np.ones((64, 64), np.float32)
    first = torch.nn.Parameter(torch.from_numpy(memory))
    # A view, so that nothing but the state knows of the storage afterwards.
    state, address = State.of_tensor(first.detach()), first.data_ptr()
    del first
    second = torch.nn.Parameter(torch.from_numpy(memory))
    assert second.data_ptr() == address
    assert State.of_tensor(second) != state


def test_a_parameter_that_is_turned_in_place_is_another() -> None:
    weight = parameter(1.0)
    state = State.of_tensor(weight)
    assert State.of_tensor(weight) == state
    weight.data = weight.data.t()
    assert State.of_tensor(weight) != state


def test_a_write_is_seen() -> None:
    weight = parameter(1.0)
    state = State.of_tensor(weight)
    with torch.no_grad():
        weight.add_(1)
    assert State.of_tensor(weight) != state


def test_a_write_in_inference_mode_is_seen() -> None:
    with torch.inference_mode():
        for weight in (torch.ones(3), torch.ones(()), torch.ones(2, 3).t(), torch.ones(2) > 0):
            state = State.of_tensor(weight)
            assert State.of_tensor(weight) == state
            weight.copy_(torch.zeros_like(weight))
            assert State.of_tensor(weight) != state

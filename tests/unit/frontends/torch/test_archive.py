"""Files of other people: nothing in them is executed, and none takes memory that it does not have.

Each archive of the first part makes a file (or would) where PyTorch's own reader opens it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpembed.frontends import load_model  # noqa: E402
from tests.unit.frontends.torch.archives import (  # noqa: E402
    CONSTANTS,
    PROGRAM,
    WEIGHTS,
    Members,
    changed,
    described,
    pickled,
    refused,
    saved,
    touching_code,
)
from tests.unit.frontends.torch.comparing import eager, run  # noqa: E402


def test_a_saved_program_computes_what_the_model_computes(original: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5)
    graph = load_model(original)
    wanted = eager(torch.export.load(original).module(), x)
    for mine, theirs in zip(run(graph, x), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    assert {"linear.weight", "linear.bias", "scale"} <= {*graph.constants}


def test_tensors_that_share_a_storage(tmp_path: Path) -> None:
    table = torch.arange(24.0).reshape(4, 6)

    class Sharing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("part", table[1:, 2:4])
            self.register_buffer("turned", table.t())
            self.register_buffer("repeated", torch.arange(4.0).expand(3, 4))
            self.register_buffer("empty", torch.zeros(0, 4))
            self.register_buffer("narrow", torch.arange(4, dtype=torch.bfloat16))
            self.register_buffer("mask", torch.tensor([True, False, True, True]))

        def forward(self, x: Any) -> Any:
            rows = torch.cat([self.repeated, self.empty]) + self.turned[:3] + x
            return rows * self.mask + self.narrow, self.part

    x = torch.randn(3, 4)
    path = saved(tmp_path / "model.pt2", Sharing(), x)
    for mine, theirs in zip(run(load_model(path), x), eager(Sharing(), x), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# -- what would be executed -----------------------------------------------------------------------


def _opaque(members: Members, made: Path) -> None:
    members["data/constants/opaque_obj_0"] = pickled(made)


def _opaque_below(members: Members, made: Path) -> None:
    members["data/constants/opaque_obj_x/data"] = pickled(made)


def _opaque_capital(members: Members, made: Path) -> None:
    members["data/constants/OPAQUE_OBJ_0"] = pickled(made)


def _custom(members: Members, made: Path) -> None:
    members["data/constants/custom_obj_0"] = pickled(made)


def _legacy_weights(members: Members, made: Path) -> None:
    members["data/weights/model.pt"] = pickled(made, by_torch=True)


def _legacy_constants(members: Members, made: Path) -> None:
    members["Data/Constants/model.pt"] = pickled(made, by_torch=True)


def _library(members: Members, made: Path) -> None:
    members["data/aotinductor/model/kernel.so"] = b"\x7fELF"


def _second_program(members: Members, made: Path) -> None:
    members["models/other.json"] = members[PROGRAM]


def _extra(members: Members, made: Path) -> None:
    members["extra/notes"] = b"words"


def _with_backslashes(members: Members, made: Path) -> None:
    members["data\\constants\\opaque_obj_0"] = pickled(made)


def _upwards(members: Members, made: Path) -> None:
    members["data/constants/../constants/opaque_obj_0"] = pickled(made)


def _tensor_of_many_digits(members: Members, made: Path) -> None:
    members["data/constants/tensor_\u0661"] = pickled(made)


@pytest.mark.parametrize(
    "change",
    [
        _opaque,
        _opaque_below,
        _opaque_capital,
        _custom,
        _legacy_weights,
        _legacy_constants,
        _library,
        _second_program,
        _extra,
        _with_backslashes,
        _upwards,
        _tensor_of_many_digits,
    ],
    ids=lambda change: change.__name__.strip("_"),
)
def test_a_member_that_no_network_needs_is_refused(
    path: Path, tmp_path: Path, change: Callable[[Members, Path], None]
) -> None:
    made = tmp_path / "made"
    changed(path, lambda members: change(members, made))
    assert "which no network needs" in refused(path)
    assert not made.exists()


@pytest.mark.parametrize("index, member", [(WEIGHTS, "weight_0"), (CONSTANTS, "tensor_0")])
@pytest.mark.parametrize("flag", [True, False])
def test_a_tensor_that_is_a_pickle_is_not_unpickled(
    path: Path, tmp_path: Path, index: str, member: str, flag: bool
) -> None:
    made, folder = tmp_path / "made", index.rpartition("/")[0]

    def rewrite(members: Members) -> None:
        members[f"{folder}/{member}"] = pickled(made, by_torch=True)

    def describe(content: Any) -> None:
        for payload in content["config"].values():
            payload["use_pickle"] = flag and payload["path_name"] == member

    changed(path, rewrite)
    described(path, index, describe)
    if flag:
        assert "is an object of Python" in refused(path)
    else:
        load_model(path)  # Bytes are bytes.
    assert not made.exists()


def test_a_constant_may_not_name_an_object(path: Path, tmp_path: Path) -> None:
    def describe(content: Any) -> None:
        for payload in content["config"].values():
            payload["path_name"] = "opaque_obj_x/data"

    described(path, CONSTANTS, describe)
    assert "holds no 'opaque_obj_x/data'" in refused(path)


def test_inputs_that_were_used_as_examples_are_not_opened(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    changed(path, lambda m: m.update({"data/sample_inputs/model.pt": pickled(made, by_torch=True)}))
    load_model(path)
    assert not made.exists()


def _size(content: Any, code: str) -> None:
    values = content["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}


def _symbol(content: Any, code: str) -> None:
    content["graph_module"]["graph"]["sym_int_values"] = {"n": {"as_expr": {"expr_str": code}}}
    _argument(content, {"as_sym_int": {"as_name": "n"}})


def _argument(content: Any, value: Any) -> None:
    node = next(n for n in content["graph_module"]["graph"]["nodes"] if "split" in n["target"])
    node["inputs"][1]["arg"] = value


@pytest.mark.parametrize("change", [_size, _symbol])
def test_an_expression_is_not_evaluated(
    path: Path, tmp_path: Path, change: Callable[[Any, str], None]
) -> None:
    made = tmp_path / "made"
    described(path, PROGRAM, lambda content: change(content, touching_code(made)))
    message = refused(path)
    assert "is left open" in message or "is no expression that is read" in message
    assert not made.exists()


def test_what_no_network_needs_is_not_evaluated_either(path: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    code = touching_code(made)

    def describe(content: Any) -> None:
        content["guards_code"] = [code]
        content["range_constraints"] = {code: {"min_val": 1, "max_val": 2}}
        content["verifiers"] = [code]
        signature = content["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = code
        content["graph_module"]["treespec_namedtuple_fields"] = {code: {"field_names": [code]}}
        for node in content["graph_module"]["graph"]["nodes"]:
            node["metadata"]["source_fn_stack"] = f"x,torch.{code}"
            node["metadata"]["custom"] = code
            node["metadata"]["nn_module_stack"] = f"{code},{code},{code};;,"

    described(path, PROGRAM, describe)
    load_model(path)
    assert not made.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.load_library",
        "torch.ops.aten.linear.default.__class__",
        "torch.ops.aten.__class__.__init__",
        "torch.ops.import_module",
        "torch.hub.load",
        "torch.classes.load_library",
        "torch.ops.higher_order.cond",
        "torch.ops.aten._print.default",
        "_operator.attrgetter",
        "math.factorial",
        "#extension:name",
        "builtins.eval",
        "os.system",
        "",
    ],
)
def test_a_name_reaches_operators_only(path: Path, target: str) -> None:
    def describe(content: Any) -> None:
        content["graph_module"]["graph"]["nodes"][0]["target"] = target

    described(path, PROGRAM, describe)
    assert "is no operator that is known" in refused(path)


@pytest.mark.parametrize("of", ["input", "node", "result", "global"])
def test_a_name_is_not_written_into_code(path: Path, tmp_path: Path, of: str) -> None:
    """PyTorch writes the names of nodes into the code of a module, which it executes."""
    made = tmp_path / "made"
    code = "torch" if of == "global" else f"x={touching_code(made)}"

    def describe(content: Any) -> None:
        graph = content["graph_module"]["graph"]
        if of == "input":
            graph["inputs"][-1]["as_tensor"]["name"] = code
            graph["tensor_values"][code] = graph["tensor_values"].pop("x")
            spec = content["graph_module"]["signature"]["input_specs"][-1]
            spec["user_input"]["arg"]["as_tensor"]["name"] = code
            graph["nodes"][0]["inputs"][0]["arg"]["as_tensor"]["name"] = code
        elif of == "node":
            node = next(n for n in graph["nodes"] if "split" in n["target"])
            node["name"] = code
        else:
            graph["nodes"][0]["outputs"][0]["as_tensor"]["name"] = code
            graph["nodes"][0]["name"] = code
            graph["tensor_values"][code] = graph["tensor_values"]["linear"]

    described(path, PROGRAM, describe)
    assert "is no name of a node" in refused(path)
    assert not made.exists()


def test_names_of_parameters_are_no_attributes(path: Path) -> None:
    def index(content: Any) -> None:
        content["config"]["__class__.forward"] = content["config"].pop("linear.weight")

    def program(content: Any) -> None:
        for spec in content["graph_module"]["signature"]["input_specs"]:
            if "parameter" in spec and spec["parameter"]["parameter_name"] == "linear.weight":
                spec["parameter"]["parameter_name"] = "__class__.forward"

    described(path, WEIGHTS, index)
    described(path, PROGRAM, program)
    assert "__class__.forward" in load_model(path).constants


# -- sizes ----------------------------------------------------------------------------------------

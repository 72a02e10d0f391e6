"""oneDNN's profile: caught without a trace on standard output, read line by line."""

from __future__ import annotations

import os

import pytest

from cpembed.errors import InvariantError
from cpembed.targets.x86.baselines.onednn import Executed, logged, per_call, read_log

LINES = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,exec_time
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:s8::blocked:abcd::f0 dst:s8::blocked:AcdB32a4b::f0,attr-scratchpad:user attr-scales:dst:1:f32,,64x64x3x3,0.0200195
something else on the same stream
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx10_1_512_amx,forward_inference,src:u8::blocked:acdb::f0,attr-scales:wei:1:f32,alg:convolution_direct,mb1_ic64oc64_ih56oh56kh3,0.0341797
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_s8::blocked:ab:f0 wei_s8::blocked:ba:f0 dst_s32::blocked:ab:f0,,,128x256:256x64,0.5
onednn_verbose,exec,cpu,convolution,jit:avx512_core,forward_inference,src_f32,attr,alg:direct,mb1,1.5
onednn_verbose,v1,primitive,exec,cpu,matmul,torn
onednn_verbose,v1,primitive,exec,cpu,matmul,brg,undef,src,attr,,1x2:2x3,tor
"""  # noqa: E501


def test_lines_are_read_by_field() -> None:
    found = read_log(LINES.splitlines())
    assert [one.name for one in found] == [
        "jit:uni",
        "brg_conv_fwd:avx10_1_512_amx",
        "gemm_api",
        "jit:avx512_core",
    ]
    assert [one.kind for one in found] == ["reorder", "convolution", "gemm_api", "convolution"]
    assert found[0].problem == "64x64x3x3"
    assert found[1].us == pytest.approx(34.1797)


def reorder(problem: str, us: float) -> Executed:
    return Executed("reorder", "jit:uni", problem, us)


def product(us: float) -> Executed:
    return Executed("matmul", "brg:amx", "8x16:16x4", us)


def test_activations_are_told_from_the_computation() -> None:
    found = per_call([reorder("8x16", 1.0), product(4.0)] * 2 + [reorder("8x16", 4.0)], 1, "16x4")
    assert (found.us, found.reorder_us) == (8.0, 6.0)
    found = per_call(
        [reorder("8x16", 1.0), product(4.0), reorder("8x16", 3.0), product(6.0)], 2, ""
    )
    assert (found.us, found.reorder_us, found.names) == (5.0, 2.0, ("jit:uni", "brg:amx"))


def test_weights_that_are_packed_in_every_call_are_told_too() -> None:
    found = per_call([reorder("16x4", 1.0), reorder("8x16", 2.0), product(4.0)], 1, "16x4")
    assert (found.us, found.reorder_us, found.weights_us) == (4.0, 2.0, 1.0)


@pytest.mark.parametrize("executed, calls", [([], 1), ([product(1.0)] * 3, 2)])
def test_a_log_that_does_not_fit_the_calls_is_refused(executed: list[Executed], calls: int) -> None:
    with pytest.raises(InvariantError, match="ONEDNN_VERBOSE"):
        per_call(executed, calls, "")


def test_what_is_printed_meanwhile_stays_off_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    switched: list[bool] = []
    print("before")
    found = logged(lambda: (os.write(1, LINES.encode()), None)[1], switched.append)
    os.write(1, b"after\n")
    assert len(found) == 4
    assert switched == [True, False]
    assert capfd.readouterr().out == "before\nafter\n"


def test_an_exception_restores_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    switched: list[bool] = []
    with pytest.raises(ZeroDivisionError):
        logged(lambda: [][1 // 0], switched.append)
    os.write(1, b"after\n")
    assert switched == [True, False]
    assert capfd.readouterr().out == "after\n"

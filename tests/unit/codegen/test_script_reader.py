"""Reader of generated TVMScript: the same functions as TVM's parser makes of the same texts."""

from __future__ import annotations

import ast

import pytest

from cpembed.codegen.instruction import Tensorizing
from cpembed.codegen.recorded import Recorder
from cpembed.codegen.script_reader import UnreadableError, read_function, read_script
from cpembed.driver.named import workload
from cpembed.driver.pipeline import choose
from cpembed.driver.plan import Request, Selection
from cpembed.targets.capabilities import planned_kernel
from cpembed.targets.x86.features import ASSUME_VARIABLE

tvm = pytest.importorskip("tvm")

HEAD = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "int32")):
"""


def function(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


TEXTS = {
    "loops": function(
        'T.func_attr({"tirx.noalias": True, "global_symbol": "main"})',
        "for chunk in T.parallel(2):",
        '    with T.sblock("chunk"):',
        "        part = T.axis.spatial(2, chunk)",
        "        T.reads(A[0:64])",
        "        T.writes(A[0:64], B[part * 32 : part * 32 + 32])",
        '        acc = T.alloc_buffer((8,), "float32", scope="local")',
        "        for i in T.serial(part * 4 // 2, (part + 1) * 4 // 2):",
        "            for k in T.unroll(2):",
        "                for lane in T.vectorized(4):",
        "                    acc[4 * k + lane] = A[i * 16 + k * 4 + lane] + T.float32(-1.5)",
        "        A[part * 8 : part * 8 + 8] = T.Broadcast(acc[3], 8)",
    ),
    "blocks": function(
        "for i, j in T.grid(8, 8):",
        '    with T.sblock("update"):',
        '        x, y = T.axis.remap("SR", [i, j])',
        "        B[x * 8 + y] = T.cast(A[8 * x + y], 'int32') - x % 3 + (y - x) // 2",
    ),
    "conditions": function(
        "for i in T.serial(64):",
        "    if i == 0 and i + 3 < 9 and 1 <= i < 8:",
        "        B[i] = -i",
        "    else:",
        "        if i > 5 or not (i != 7):",
        "            B[i] = T.if_then_else(A[i] >= T.float32(0), 1, T.max(i, 2))",
        "        else:",
        "            B[i] = ~B[i] & 3 | i << 1 ^ i >> 2",
        "    if True:",
        "        A[i] = A[i] / T.float32('inf')",
        "    if False and i:",
        "        A[i] = T.nan('float32')",
    ),
    "types": function(
        "for i in T.serial(64):",
        '    wide = T.alloc_buffer((1,), "int64")',
        '    wide[0] = T.cast(i, "int64")',
        "    wide[0] = wide[0] + T.Select(wide[0] < T.int64(0), 300, 0)",
        "    if wide[0] >= i * 3 and wide[0] != T.int64(5) or not wide[0] < i:",
        '        B[i] = T.cast(wide[0], "int32") % 7',
    ),
    "while": function(
        "B[0] = 7",
        "while B[0] > 1:",
        "    half: T.let = B[0] // 2",
        "    B[0] = half",
        "    A[half] = T.float32(0.5)",
    ),
    "let": function(
        "for i in T.serial(64):",
        "    a: T.let = A[i] * T.float32(2)",
        "    b: T.let = i + 1",
        "    c: T.let = 3",
        "    A[i] = T.fma(a, a, T.cast(b + c, 'float32'))",
        "for i in T.serial(64):",
        "    a: T.let = B[i]",
        "    B[i] = T.reinterpret('int32', a)",
        "    T.evaluate(0)",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_reader_and_parser_of_tvm_agree(name: str) -> None:
    read, parsed = read_function(TEXTS[name]), tvm.script.from_source(TEXTS[name])
    tvm.ir.assert_structural_equal(read, parsed, map_free_vars=False)
    # Names too, which structural equality leaves out.
    assert read.script() == parsed.script()


@pytest.mark.parametrize(
    "lines",
    [
        ("while A[0] < 1.0:", "    A[0] = A[1]", "else:", "    A[1] = A[0]"),
        ("i = 5",),
        ("x: T.int32 = 5",),
        ("A[0] += T.float32(1)",),
        ("for i in range(4):", "    A[i] = A[i]"),
        ("A[0] = unknown",),
        ("A[0] = A[1] if B[0] == 1 else A[2]",),
        ("assert True",),
    ],
)
def test_what_generated_texts_do_not_have_is_named(lines: tuple[str, ...]) -> None:
    with pytest.raises(UnreadableError, match="no reader"):
        read_function(function(*lines))


def test_other_texts_are_left_to_the_parser_of_tvm() -> None:
    text = function("for i in range(4):", "    A[i] = A[i] + T.float32(1)")
    parsed = tvm.script.from_source(text)
    tvm.ir.assert_structural_equal(read_script(text), parsed, map_free_vars=False)


def test_a_text_is_one_function() -> None:
    with pytest.raises(UnreadableError):
        read_function(TEXTS["let"] + TEXTS["let"])
    assert len(ast.parse(TEXTS["let"]).body) == 1


@pytest.fixture
def sapphire_rapids(monkeypatch: pytest.MonkeyPatch) -> None:
    """All instructions of a processor that this machine only plans for."""
    monkeypatch.setenv(
        ASSUME_VARIABLE,
        "avx2,fma,avx512f,avx512bw,avx512_vnni,avx512_bf16,avx_vnni,amx_tile,amx_int8,amx_bf16",
    )


@pytest.mark.usefixtures("sapphire_rapids")
@pytest.mark.parametrize(
    "target",
    ["amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16", "avx_vnni", "avx512_f32", "avx2_f32"],
)
def test_texts_of_instructions_are_read_as_tvm_parses_them(target: str) -> None:
    layer = workload("conv2d n=1 c=16 h=6 w=6 k=32 r=3 s=3 pad=1", target)
    selection = choose(Request(layer, target))
    assert isinstance(selection, Selection)
    machine = selection.plan.target
    lowered = machine.lower(selection.ranked.candidate.program, selection.plan.epilogue)
    kernel = planned_kernel(machine, lowered, selection.choice.schedule, Recorder())
    assert kernel is not None
    replacing = kernel.plan.schedule
    replaced = replacing.replaced if isinstance(replacing, Tensorizing) else ()
    intrinsics = [intrinsic for _, intrinsic, _ in replaced]
    texts = [kernel.plan.source]
    texts += [t for each in intrinsics for t in (each.description, each.implementation)]
    for text in texts:
        parsed = tvm.script.from_source(text)
        tvm.ir.assert_structural_equal(read_function(text), parsed, map_free_vars=False)

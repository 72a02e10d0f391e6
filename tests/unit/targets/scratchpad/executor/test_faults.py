"""What a machine does not define ends a run in one line; what it defines does not."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from cpembed.errors import LoweringError
from cpembed.targets.scratchpad.executor import ExecutionFault, Program, Shape, compile_text
from tests.unit.targets.scratchpad.executor.running import (
    Array,
    body,
    fault,
    needs_compiler,
    read_only,
    run,
    text,
)

pytestmark = needs_compiler

ONE = Shape(1, 1, (4096, 1024), 64, 4, 2, lanes=4)
TWO = Shape(1, 2, (4096, 1024), 64, 4, 2, lanes=4)

OF_ONE = {
    "scratchpad_beyond": "out of bounds: byte 4097 of memory 0, which has 4096",
    "no_memory": "no memory 2: the machine has 2",
    "get_beyond": "out of bounds: bytes 4000 to 4127 of memory 0, which has 4096",
    "store_beyond": "out of bounds: bytes 4096 to 4099 of memory 0",
    "zero_beyond": "out of bounds: bytes 0 to 4099 of memory 0",
    "wild_store": "an address that is in no scratchpad",
    "main_beyond": "out of bounds: bytes 16256 to 16447 of operand 0, which has 16384",
    "main_before": "out of bounds: bytes -4 to 187 of operand 0",
    "no_operand": "an address in main memory that is in no operand",
    "read_only": "writes operand 0, which is read-only",
    "misaligned_size": "a size of 6, which is no multiple of 4 bytes",
    "misaligned_block": "blocks of 6, which is no multiple of 4 bytes",
    "misaligned_stride": "a stride of 10, which is no multiple of 4 bytes",
    "misaligned_near": "an address in the scratchpad at byte 2, which is no multiple of 4",
    "misaligned_far": "an address in main memory at byte 2, which is no multiple of 4",
    "broken_block": "blocks of 24 bytes, of which 64 are no whole number",
    "short_stride": "a stride of 16 bytes, less than its blocks of 32",
    "zero_of_target": "writes bytes 252 to 255 of memory 0, which dma_get .* still fills",
    "zero_into_target": "writes bytes 0 to 67 of memory 0, which dma_get .* still fills",
    "load_of_target": "reads bytes 12 to 15 of memory 0, which dma_get .* still fills",
    "hook_on_target": "touch_read .* reads bytes 0 to 7 of memory 0, which dma_get",
    "put_of_target": "dma_put .* reads bytes 0 to 63 of memory 0, which dma_get",
    "gemm_on_target": "gemm's B .* reads bytes 0 to 15 of memory 0, which dma_get",
    "two_gets_to_one_target": "writes bytes 252 to 315 of memory 0, which dma_get",
    "get_to_source": "dma_get .* writes bytes 60 to 123 of memory 0, which dma_put .* still reads",
    "source_is_changed": "a store .* writes bytes 60 to 63 .* which dma_put .* still reads",
    "source_is_set": "a store .* writes bytes 60 to 63 of memory 0, which dma_put",
    "source_is_changed_secretly": "bytes 0 to 63 of memory 0 were changed after dma_put",
    "secretly_beyond": "an instruction that did not say so changed a byte after memory 0",
    "secretly_before": "an instruction that did not say so changed a byte before memory 1",
    "put_never_written": "dma_put .* reads byte 64 of memory 0, which was never written",
    "load_never_written": "a load .* reads byte 64 of memory 0, which was never written",
    "hook_never_written": "touch_read .* reads byte 8 of memory 0, which was never written",
    "gemm_never_written": "gemm's A .* reads byte 60 of memory 0, which was never written",
    "waits_for_more": "never ends: it waits for 2 transfers, and 1 were started",
    "waits_again": "never ends: it waits for 1 transfers, and 0 were started",
    "waits_for_fewer": "waits for 1 transfers of the 2 .*: which have ended is unknown",
    "swapped_reply_words": "never ends: it waits for 1 transfers, and 0 were started",
    "never_waited_for": "the kernel ends, and dma_get .* was never waited for",
    "not_initialised": "a reply word that is 7, not 0",
    "shared_reply_word": "a reply word that is no local variable of the kernel",
    "own_puts": r"uses byte 60 of operand 1, which PE \(0, 0\) writes .* has not been waited for",
    "get_of_own_put": "uses byte 0 of operand 1, .* writes by dma_put .* that has not been waited",
    "put_over_own_get": "uses byte 32 of operand 1, .* reads by dma_get .* not been waited for",
    "put_over_own_get_in_gaps": "uses byte 28 of operand 1|uses byte 32 of operand 1",
    "plain_load": "a load .* is of operand 0 in main memory, which only DMA reaches",
    "plain_store": "a store .* is of operand 1 in main memory, which only DMA reaches",
    "copy": "a load .* is of operand 0 in main memory, which only DMA reaches",
    "static_variable": "a store .* changes a static variable, which all PEs share",
    "gemm_leading_dimension": "a leading dimension of A of 3, less than 4",
    "gemm_variant": "no variant 8",
    "gemm_lanes": "vectorised over 6 elements of M a PE, which is no multiple of 4 lanes",
    "gemm_sizes": "sizes of 4 x 4 x 0, which cannot be divided among 1 x 1 PEs",
    "gemm_beyond": "gemm's C .* bytes 4084 to 4099 of memory 0, which has 4096",
}

RACE = r"of operand 1, which PE \(0, [01]\) (reads|writes) by dma_.* without sync_all in between"

OF_TWO = {
    "two_puts": RACE,
    "get_of_another_put": RACE,
    "put_is_under_way_when_all_meet": RACE,
    "memory_of_another": r"PE \(0, 1\): zero .* is in the scratchpad of PE \(0, 0\)",
    "nobody_puts": r"deadlock: PE \(0, 0\) waits in row_get .*; PE \(0, 1\) has ended",
    "nobody_gets": r"deadlock: PE \(0, 0\) waits in row_put .* the queue of PE \(0, 1\)",
    "queue_is_not_empty": r"PE \(0, 1\): at the end, its row queue has 1 vectors that nobody got",
    "queue_is_not_empty_at_a_gemm": r"PE \(0, 1\): at a gemm, its row queue has 1 vectors that",
    "other_lengths": r"takes 8 bytes, and the next vector, which PE \(0, 0\) put .* has 16",
    "to_itself": "goes to place 0 of 2, from place 0",
    "to_nobody": "goes to place 2 of 2, from place 0",
    "long_vector": "a vector of 36 bytes: a machine of 4 lanes has at most 32",
    "vector_never_written": "row_put .* reads byte 0 of memory 0, which was never written",
    "not_all_meet": r"deadlock: PE \(0, 0\) has ended; PE \(0, 1\) waits in sync_all",
    "meet_in_other_places": r"deadlock: PE \(0, 0\) waits in gemm .*; PE \(0, 1\) waits in sync",
    "other_gemms": r"has k = \d+, while PE \(0, [01]\) calls it at line .* with \d+",
}


def names() -> list[str]:
    return re.findall(r"^CASE\((\w+)\)", text("faults.c"), re.MULTILINE)


def program(columns: bool = False) -> Program:
    """The cases; with columns in the place of rows where that is asked for."""
    source = text("faults.c").replace("CASES", ", ".join(names()))
    return compiled(source.replace(" row_", " column_") if columns else source)


@cache
def compiled(source: str) -> Program:
    return compile_text(source)


def marked_line(name: str) -> int | None:
    """The line of a case whose fault it is."""
    lines = text("faults.c").split("\n")
    number = lines.index(f"CASE({name}) {{")
    while not lines[number].startswith("}"):
        number += 1
        if lines[number].endswith("// fault"):
            return number + 1
    return None


def operands(name: str, bad: bool) -> list[Array]:
    told = np.array([names().index(name), bad], np.int32)
    numbers = np.arange(4096, dtype=np.float32)
    return [read_only(numbers), np.zeros(4096, np.float32), read_only(told)]


def check(cases: Program, name: str, shape: Shape, pattern: str) -> None:
    for seed in range(4):
        run(cases, operands(name, False), shape, seed)
        said = fault(cases, operands(name, True), shape, seed)
        assert re.search(pattern, said), said
        line = marked_line(name)
        assert line is None or re.findall(r"at line (\d+) ", said)[0] == str(line), said


def test_every_case_is_here() -> None:
    assert {*OF_ONE, *OF_TWO} == set(names())


@pytest.mark.parametrize("name", OF_ONE)
def test_one_element(name: str) -> None:
    check(program(), name, ONE, OF_ONE[name])


@pytest.mark.parametrize("name", OF_TWO)
def test_two_elements(name: str) -> None:
    check(program(), name, TWO, OF_TWO[name])


@pytest.mark.parametrize("name", OF_TWO)
def test_two_elements_in_a_column(name: str) -> None:
    pattern = re.sub(r"row([_ ])", r"column\1", OF_TWO[name])
    pattern = pattern.replace("(0, 1)", "(1, 0)").replace(r"\(0, 1\)", r"\(1, 0\)")
    pattern = pattern.replace(r"\(0, [01]\)", r"\([01], 0\)")
    check(program(columns=True), name, Shape(2, 1, (4096, 1024), 64, 4, 2, lanes=4), pattern)


EARLY = """#include "scratchpad.h"
static INSTRUCTION void execute(const float *x, float *y) { *y = *x; }
void kernel(const struct arguments *a) {
  float *x = scratchpad(0, 0), *y = scratchpad(0, 4);
  dma_reply r = 0;
  zero(x, 8);
  dma_get(x, a->operand[0], 4, 4, 0, &r);
  execute(x, y);
  dma_wait(&r, 1);
  dma_put(a->operand[1], y, 4, 4, 0, &r);
  dma_wait(&r, 1);
}
"""


def test_data_arrive_early_or_late() -> None:
    """An instruction that reads a target too early, without saying so, is right for some seeds."""
    early = compile_text(EARLY)
    got = list[float]()
    for seed in range(16):
        arrays = [np.ones(1, np.float32), np.zeros(1, np.float32)]
        run(early, arrays, ONE, seed)
        got.append(float(arrays[1][0]))
    wrong = [value for value in got if value != 1]
    assert 0 < len(wrong) < len(got)
    assert np.isnan(wrong).all()


def test_what_is_given_to_a_run() -> None:
    nothing = body("(void)a;")
    with pytest.raises(ExecutionFault, match="at most 8 operands, and 9 are given"):
        nothing.run(ONE, [np.zeros(1, np.float32)] * 9)
    with pytest.raises(ExecutionFault, match="both have to divide 256"):
        Shape(1, 1, (64,), 96, 4, 1)
    with pytest.raises(ExecutionFault, match="all of it is positive"):
        Shape(1, 0, (64,), 64, 4, 1)


def test_texts_that_cannot_be_compiled() -> None:
    with pytest.raises(LoweringError, match="has no kernel"):
        compile_text("int a;")
    with pytest.raises(LoweringError, match=r"the scratchpad text: line 3:.*missing"):
        body("int n = missing;")

"""Errors put into the PTX of device functions and into kernels, kind by kind.

A kind names the device functions that it applies to, a pattern, and what replaces its first match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of error; ``neutral`` says why a kind changes no result, and is empty otherwise."""

    name: str
    functions: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    neutral: str = ""


_LOAD, _STORE = r"cpembed_load_\d+", r"cpembed_store_\d+"
_SHARED_LOAD, _SHARED_STORE = r"cpembed_shared_load_\d+", r"cpembed_shared_store_\d+"
_COPY, _WAIT, _COMMIT = (
    r"cpembed_cp_async_\d+",
    r"cpembed_cp_async_wait_\d",
    r"cpembed_cp_async_commit",
)
_MATRICES, _PRODUCT = r"cpembed_ldmatrix_x\d(_trans)?", r"cpembed_mma_\w+"
_WMMA_LOAD, _WMMA_STORE = r"cpembed_wmma_load_\w+", r"cpembed_wmma_store_\w+"
_WMMA_PRODUCT = r"cpembed_wmma_mma_\w+"

KINDS = (
    # Predicated loads and stores.
    Kind("the predicate of a load is inverted", _LOAD, "@p ", "@!p "),
    Kind("the predicate of a store is inverted", _STORE, "@p ", "@!p "),
    Kind("the predicate of a load is dropped", _LOAD, "@p ", ""),
    Kind("the predicate of a store is dropped", _STORE, "@p ", ""),
    Kind("a load's predicate compares for equality", _LOAD, r"setp\.ne", "setp.eq"),
    Kind("a store's predicate compares for equality", _STORE, r"setp\.ne", "setp.eq"),
    Kind("a load's predicate compares with 1", _LOAD, r"(%\d+), 0;", r"\1, 1;"),
    Kind("a store's predicate compares with 1", _STORE, r"(%\d+), 0;", r"\1, 1;"),
    Kind("registers of a load are outputs only", _LOAD, r'"\+r"', '"=r"'),
    Kind("a load's registers are not zero before", _LOAD, "w0 = 0;", "w0 = 3;"),
    # Widths, types, operands of accesses.
    Kind("a load of 4 words takes 2", _LOAD, r"v4\.u32 \{%0, %1, %2, %3\}", "v2.u32 {%0, %1}"),
    Kind("a load of 2 words takes 1", _LOAD, r"v2\.u32 \{%0, %1\}", "u32 %0"),
    Kind("a load of a word takes a half", _LOAD, r"global\.u32", "global.u16"),
    Kind("a load of a half takes a byte", _LOAD, r"global\.u16", "global.u8"),
    Kind("a load of a byte takes a half", _LOAD, r"global\.u8", "global.u16"),
    Kind("a vector has more registers than its type", _LOAD, r"v4\.u32", "v2.u32"),
    Kind("a load's registers are exchanged", _LOAD, r"\{%0, %1", "{%1, %0"),
    Kind("a load is shifted by a word", _LOAD, r"\[(%\d+)\]", r"[\1+16]"),
    Kind("a load is of shared memory", _LOAD, r"ld\.global", "ld.shared"),
    Kind("a store of 4 words makes 2", _STORE, r"v4\.u32 (\[%\d+\]), \{%0, %1, %2, %3\}",
         r"v2.u32 \1, {%0, %1}"),
    Kind("a store of 2 words makes 1", _STORE, r"v2\.u32 (\[%\d+\]), \{%0, %1\}", r"u32 \1, %0"),
    Kind("a store of a word makes a half", _STORE, r"global\.u32", "global.u16"),
    Kind("a store of a half makes a byte", _STORE, r"global\.u16", "global.u8"),
    Kind("a store of a byte makes a half", _STORE, r"global\.u8", "global.u16"),
    Kind("a store's registers are exchanged", _STORE, r"\{%0, %1", "{%1, %0"),
    Kind("a store is shifted by a word", _STORE, r"\[(%\d+)\]", r"[\1+16]"),
    Kind("a store is to shared memory", _STORE, r"st\.global", "st.shared"),
    Kind("a load has no space", _LOAD, r"ld\.global", "ld",
         neutral="generic addresses of global memory are the same numbers"),
    Kind("a store has no space", _STORE, r"st\.global", "st",
         neutral="generic addresses of global memory are the same numbers"),
    Kind("a load is cached in L2 only", _LOAD, r"ld\.global", "ld.global.cg",
         neutral="caches change times only"),
    Kind("a load is signed", _LOAD, r"global\.u(8|16)", r"global.s\1",
         neutral="the bits of the sign are above those that are kept"),
    # Shared memory.
    Kind("a shared load of 4 words takes 2", _SHARED_LOAD, r"v4\.u32 \{%0, %1, %2, %3\}",
         "v2.u32 {%0, %1}"),
    Kind("a shared load of 2 words takes 1", _SHARED_LOAD, r"v2\.u32 \{%0, %1\}", "u32 %0"),
    Kind("a shared load's registers are exchanged", _SHARED_LOAD, r"\{%0, %1", "{%1, %0"),
    Kind("a shared load is shifted", _SHARED_LOAD, r"\[(%\d+)\]", r"[\1+16]"),
    Kind("a shared load is of global memory", _SHARED_LOAD, r"ld\.shared", "ld.global"),
    Kind("a shared load has no space", _SHARED_LOAD, r"ld\.shared", "ld"),
    Kind("a shared load's address is generic", _SHARED_LOAD,
         r"__cvta_generic_to_shared\(shared\)", "reinterpret_cast<size_t>(shared)"),
    Kind("a shared store of 2 words makes 1", _SHARED_STORE,
         r"v2\.u32 (\[%\d+\]), \{%0, %1\}", r"u32 \1, %0"),
    Kind("a shared store of a word makes a half", _SHARED_STORE, r"shared\.u32", "shared.u16"),
    Kind("a shared store of a half makes a byte", _SHARED_STORE, r"shared\.u16", "shared.u8"),
    Kind("a shared store's registers are exchanged", _SHARED_STORE, r"\{%0, %1", "{%1, %0"),
    Kind("a shared store is shifted", _SHARED_STORE, r"\[(%\d+)\]", r"[\1+16]"),
    Kind("a shared store is to global memory", _SHARED_STORE, r"st\.shared", "st.global"),
    Kind("a shared store's address is generic", _SHARED_STORE,
         r"__cvta_generic_to_shared\(shared\)", "reinterpret_cast<size_t>(shared)"),
    # Asynchronous copies.
    Kind("a copy ignores how much of its source is valid", _COPY, r"(\d+), %2;", r"\1;"),
    Kind("a copy reads nothing", _COPY, r"valid \? (\d+) : 0", "0"),
    Kind("a copy reads always", _COPY, r"valid \? (\d+) : 0", r"\1"),
    Kind("a copy reads where it is not valid", _COPY, r"valid \? (\d+) : 0", r"valid ? 0 : \1"),
    Kind("a copy reads half", _COPY, r"valid \? (\d+) : 0", r"valid ? \1 / 2 : 0"),
    Kind("a copy reads more than it has", _COPY, r"valid \? (\d+) : 0", r"valid ? 2 * \1 : 0"),
    Kind("a copy of 16 bytes past L1 has 8", _COPY, "cg(.*), 16, %2", r"cg\1, 8, %2"),
    Kind("a copy of 16 bytes has 8", _COPY, "cg(.*), 16, %2", r"ca\1, 8, %2"),
    Kind("a copy of 8 bytes has 4", _COPY, ", 8, %2", ", 4, %2"),
    Kind("a copy of 4 bytes has 8", _COPY, ", 4, %2", ", 8, %2"),
    Kind("a copy's addresses are exchanged", _COPY, r"\[%0\], \[%1\]", "[%1], [%0]"),
    Kind("a copy's target is shifted", _COPY, r"\[%0\]", "[%0+16]"),
    Kind("a copy's source is shifted", _COPY, r"\[%1\]", "[%1+16]"),
    Kind("a copy's address is generic", _COPY, r"__cvta_generic_to_shared\(shared\)",
         "reinterpret_cast<size_t>(shared)"),
    Kind("a copy is cached in L1", _COPY, r"cp\.async\.cg", "cp.async.ca",
         neutral="caches change times only"),
    Kind("a copy prefetches", _COPY, r"shared\.global", "shared.global.L2::128B",
         neutral="caches change times only"),
    Kind("a group is not committed", _COMMIT, r"asm volatile[^;]*;[^;]*;", ""),
    Kind("a group is committed twice", _COMMIT, r'group;"', 'group; cp.async.commit_group;"',
         neutral="waits count an empty group, so they wait for more"),
    Kind("a wait leaves one group more", _WAIT, r"group (\d);",
         lambda match: f"group {int(match[1]) + 1};"),
    Kind("a wait is dropped", _WAIT, r"asm volatile[^;]*;[^;]*;", ""),
    Kind("a wait becomes a commit", _WAIT, r"wait_group \d", "commit_group"),
    Kind("a wait leaves one group fewer", _WAIT, "wait_group [1-9]", "wait_group 0",
         neutral="waiting for more changes times only"),
    Kind("a wait is for all groups", _WAIT, r"wait_group \d", "wait_all",
         neutral="waiting for more changes times only"),
    # ldmatrix.
    Kind("ldmatrix loads fewer matrices into its registers", _MATRICES, r"\.x4", ".x2"),
    Kind("ldmatrix loads two of four matrices", _MATRICES, r"x4(.*)\{%0, %1, %2, %3\}",
         r"x2\1{%0, %1}"),
    Kind("ldmatrix loads one of two matrices", _MATRICES, r"x2(.*)\{%0, %1\}", r"x1\1{%0}"),
    Kind("ldmatrix transposes", _MATRICES, r"(x\d)\.shared", r"\1.trans.shared"),
    Kind("the first registers of ldmatrix are exchanged", _MATRICES, r"\{%0, %1", "{%1, %0"),
    Kind("the middle registers of ldmatrix are exchanged", _MATRICES, "%1, %2", "%2, %1"),
    Kind("ldmatrix is shifted by a row", _MATRICES, r"\[(%\d)\]", r"[\1+16]"),
    Kind("ldmatrix is of global memory", _MATRICES, r"\.shared", ".global"),
    Kind("ldmatrix's address is generic", _MATRICES, r"__cvta_generic_to_shared\(shared\)",
         "reinterpret_cast<size_t>(shared)"),
    Kind("ldmatrix has matrices of bytes", _MATRICES, r"\.b16", ".b8"),
    # mma.sync.
    Kind("registers of A are exchanged", _PRODUCT, r"\}, \{(%\d+), (%\d+)", r"}, {\2, \1"),
    Kind("registers of B are exchanged", _PRODUCT, r"\{(%\d+), (%\d+)\}, (\{[^}]*\};)",
         r"{\2, \1}, \3"),
    Kind("the factors are exchanged", _PRODUCT, r"\}, (\{[^}]*\}), (\{[^}]*\}), ", r"}, \2, \1, "),
    Kind("summands are exchanged", _PRODUCT, r"\{%0, %1([^}]*\};)", r"{%1, %0\1"),
    Kind("results are exchanged", _PRODUCT, r" \{%0, %1", " {%1, %0"),
    Kind("B is by rows", _PRODUCT, r"row\.col", "row.row"),
    Kind("A is by columns", _PRODUCT, r"row\.col", "col.col"),
    Kind("the depth is halved", _PRODUCT, r"k(16|32)\.row",
         lambda match: f"k{int(match[1]) // 2}.row"),
    Kind("factors of float16 are of bfloat16", _PRODUCT, r"f32\.f16\.f16\.f32",
         "f32.bf16.bf16.f32"),
    Kind("factors of bfloat16 are of float16", _PRODUCT, r"f32\.bf16\.bf16\.f32",
         "f32.f16.f16.f32"),
    Kind("sums are of float16", _PRODUCT, r"f32\.f16\.f16\.f32", "f16.f16.f16.f16"),
    Kind("A has no sign", _PRODUCT, r"s32\.s8\.(.)8", r"s32.u8.\g<1>8"),
    Kind("B has no sign", _PRODUCT, r"s32\.(.)8\.s8", r"s32.\g<1>8.u8"),
    Kind("a product is not aligned", _PRODUCT, r"sync\.aligned", "sync"),
    # WMMA.
    Kind("a fragment of rows is loaded by columns", _WMMA_LOAD, r"aligned\.row", "aligned.col"),
    Kind("a fragment of columns is loaded by rows", _WMMA_LOAD, r"aligned\.col", "aligned.row"),
    Kind("a fragment's rows are dense", _WMMA_LOAD, r", %\d+;", ";"),
    Kind("a fragment's rows are farther apart", _WMMA_LOAD, r'"r"\(ld\)', '"r"(ld + 8)'),
    Kind("A is loaded as B", _WMMA_LOAD, r"load\.a\.", "load.b."),
    Kind("B is loaded as A", _WMMA_LOAD, r"load\.b\.", "load.a."),
    Kind("a fragment has another shape", _WMMA_LOAD, "m16n16k16", "m32n8k16"),
    Kind("a fragment's registers are exchanged", _WMMA_LOAD, r"\{%0, %1", "{%1, %0"),
    Kind("a fragment is loaded from global memory", _WMMA_LOAD, r"\.shared", ".global"),
    Kind("WMMA takes A by columns", _WMMA_PRODUCT, r"row\.col", "col.col"),
    Kind("WMMA takes B by rows", _WMMA_PRODUCT, r"row\.col", "row.row"),
    Kind("WMMA's registers of A are exchanged", _WMMA_PRODUCT, r"\}, \{(%\d+), (%\d+)",
         r"}, {\2, \1"),
    Kind("WMMA's results are exchanged", _WMMA_PRODUCT, r" \{%0, %1", " {%1, %0"),
    Kind("WMMA's products are signed otherwise", _WMMA_PRODUCT, r"s8\.s8", "u8.u8"),
    Kind("sums are stored by columns", _WMMA_STORE, r"aligned\.row", "aligned.col"),
    Kind("sums are stored dense", _WMMA_STORE, r", %\d+;", ";"),
    Kind("sums are stored elsewhere", _WMMA_STORE, r"\[(%\d+)\]", r"[\1+32]"),
    Kind("stored registers are exchanged", _WMMA_STORE, r"\{%0, %1", "{%1, %0"),
)  # fmt: skip
"""Kinds of errors in device functions."""

KERNEL_KINDS = (
    Kind("a barrier of the block is missing", "product_kernel",
         r"tvm_builtin_cuda_cta_sync\(\);", ";"),
    Kind("the last barrier of the block is missing", "product_kernel",
         r"tvm_builtin_cuda_cta_sync\(\);(?!.*tvm_builtin_cuda_cta_sync)", ";"),
    Kind("a barrier of the warp is missing", "product_kernel",
         r"tvm_builtin_cuda_warp_sync\(\);", ";"),
    Kind("the last wait is missing", "product_kernel", r"cpembed_cp_async_wait_0\(\);", ";",
         neutral="the last groups are empty"),
    Kind("the sums begin with rubbish", "product_kernel", r"sums_ptr\[0\] = [^;]*;", ";"),
    Kind("a stage is read that is not the one", "product_kernel", r"% 3\) \*", "% 3 + 1) % 3 *"),
    Kind("a copy of a stage is missing", "product_kernel", r"cpembed_cp_async_\d+\([^;]*;", ";"),
    Kind("a product is missing", "product_kernel", r"cpembed_\w*mma_m\w+\([^;]*;", ";"),
    Kind("a product is made twice", "product_kernel", r"(cpembed_\w*mma_m\w+\([^;]*;)", r"\1 \1"),
    Kind("a result is not stored", "product_kernel", r"cpembed_store_\d+\([^;]*;", ";"),
)  # fmt: skip
"""Kinds of errors in the text of a kernel."""


def mutated(source: str, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield the function's name and the text with an error, for each function that can have it."""
    for match in re.finditer(r"__device__ void (cpembed_\w+)\(", source):
        end = source.index("\n}\n", match.start())
        if re.fullmatch(kind.functions, match[1]):
            yield from _replaced(source, match.end(), end, match[1], kind)


def mutated_kernel(source: str, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield the kernel's name and the text with an error in the kernel."""
    for match in re.finditer(rf"__global__.*?\b({kind.functions})\(", source, re.DOTALL):
        # The definition, not the declaration before it.
        if source.index("{", match.end()) < (source + ";").index(";", match.end()):
            end = source.index("\n}\n", match.end())
            yield from _replaced(source, match.end(), end, match[1], kind)


def _replaced(
    source: str, start: int, end: int, name: str, kind: Kind
) -> Iterator[tuple[str, str]]:
    text, count = re.subn(kind.pattern, kind.replacement, source[start:end], count=1,
                          flags=re.DOTALL)  # fmt: skip
    if count and text != source[start:end]:
        yield name, source[:start] + text + source[end:]

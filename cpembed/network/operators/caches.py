"""Kernels of caches, which write in place if the caller passes one memory for both tensors."""

from __future__ import annotations

from cpembed.codegen.plan import KernelPlan
from cpembed.graph.kinds.lines import CacheUpdate
from cpembed.network.operators.emission import Kernel, Operands

_SAME = "cpembed_is_same_memory"
# The compiler may assume that no two parameters are one memory, so it must not see that these are
# compared.
_SAME_FUNCTION = f"""
define internal i32 @{_SAME}(ptr %a, ptr %b) alwaysinline {{
  %place = alloca ptr
  store volatile ptr %a, ptr %place
  %hidden = load volatile ptr, ptr %place
  %same = icmp eq ptr %hidden, %b
  %result = zext i1 %same to i32
  ret i32 %result
}}
"""


def cache_update_plan(kind: CacheUpdate, operands: Operands) -> KernelPlan:
    """Return the kernel of a cache update."""
    cache, update, _ = operands.inputs
    rows, width = kind.rows(cache.type)
    size, count = cache.shape[kind.axis], update.shape[kind.axis]
    per_cache = rows // cache.shape[0]
    # In place, as it should be, the work is that of the new elements.
    kernel = Kernel(operands, min(rows, operands.chunks(tensors=[update, update])))
    kernel.include(_SAME, _SAME_FUNCTION)
    script = kernel.script
    with kernel.body():
        addresses = "T.address_of(in0[0]), T.address_of(out0[0])"
        script.line(f'same: T.let = T.call_extern("int32", "{_SAME}", {addresses})')
        with script.nested(f"for row in T.serial({kernel.share(rows)}):"):
            with script.nested("if same == 0:", f"for element in T.serial({size * width}):"):
                place = f"row * {size * width} + element"
                script.line(f"out0[{place}] = in0[{place}]")
            first = f'T.cast(in2[row // {per_cache}], "int32")'
            limit = size - 1 if kind.is_circular else size - count
            wrapped = f"T.floormod({first}, {size})" if kind.is_circular else first
            script.line(f"first: T.let = T.max(0, T.min({limit}, {wrapped}))")
            with script.nested(
                f"for position in T.serial({count}):", f"for element in T.serial({width}):"
            ):
                target = "(first + position)"
                if kind.is_circular:
                    target = f"(({target}) % {size})"
                source = f"(row * {count} + position) * {width} + element"
                place = f"(row * {size} + {target}) * {width} + element"
                script.line(f"out0[{place}] = in1[{source}]")
    return kernel.plan("cache_update")

"""Rows of barriers: named ones, those of clusters, barrier objects, ends of kernels before.

From the PTX ISA, "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

from cpembed.targets.cuda.emulator.ptx.body import Call
from cpembed.targets.cuda.emulator.ptx.syntax import Address, Name
from cpembed.targets.cuda.emulator.ptx.table import instruction, optional, required, runtime_call

_OBJECT = optional("space", "shared", "shared::cta", "shared::cluster")
_SCOPE = optional("scope", "cta", "cluster", "gpu", "sys")
_B64 = required("type", "b64")

# ------------------------------------------------------------------------------ named barriers


def _barrier(call: Call, function: str) -> str:
    threads = call.value(1, "u32") if len(call.operands) == 2 else "0u"
    return call.invoke(function, call.value(0, "u32"), threads)


for _name in ("bar", "bar.cta", "barrier", "barrier.cta"):
    # Without .aligned the lanes of a warp may come apart, which is not emulated.
    _ALIGNED = [required("aligned", "aligned")] if _name.startswith("barrier") else []

    @instruction(f"{_name}.sync", *_ALIGNED, operands=(1, 2))
    def _wait_at_barrier(call: Call) -> str:
        return _barrier(call, "bar_sync")

    @instruction(f"{_name}.arrive", *_ALIGNED, operands=2)
    def _arrive_at_barrier(call: Call) -> str:
        return _barrier(call, "bar_arrive")


# ------------------------------------------------------------------------------------ clusters


@instruction("barrier.cluster.arrive", optional("order", "release", "relaxed"),
             required("aligned", "aligned"), operands=0)  # fmt: skip
def _arrive_at_cluster(call: Call) -> str:
    releases = "false" if call["order"] == "relaxed" else "true"
    return call.invoke("cluster_arrive", releases)


runtime_call(
    "barrier.cluster.wait",
    "cluster_wait",
    optional("order", "acquire"),
    required("aligned", "aligned"),
)


@instruction("mapa", optional("space", "shared::cluster"), required("type", "u32"), operands=3)
def _map_address(call: Call) -> str:
    return call.returned("u32", "mapa", call.value(1, "u32"), call.value(2, "u32"))


# ------------------------------------------------------------------------------ barrier objects


_OWN_OBJECT = optional("space", "shared", "shared::cta")


_COUNTED = ("shared", "u32")
_RELAXED = optional("order", "relaxed")
runtime_call("mbarrier.init", "mbarrier_init", _OWN_OBJECT, _B64, arguments=_COUNTED)
runtime_call("mbarrier.inval", "mbarrier_inval", _OWN_OBJECT, _B64, arguments=["shared"])
for _name in ("expect_tx", "complete_tx"):
    _slots = (_RELAXED, _SCOPE, _OBJECT, _B64)
    runtime_call(f"mbarrier.{_name}", f"mbarrier_{_name}", *_slots, arguments=_COUNTED)

_RELEASE = optional("order", "release", "relaxed")


for _name in ("mbarrier.arrive", "mbarrier.arrive_drop"):

    @instruction(_name, optional("transactions", "expect_tx", "noComplete"), _RELEASE, _SCOPE,
                 _OBJECT, _B64, operands=(1, 2, 3))  # fmt: skip
    def _arrive(call: Call) -> str:
        # Remote arrivals may lack the destination of the state.
        first = 0 if isinstance(call.operands[0], Address) else 1
        count = "1u"
        if len(call.operands) > first + 1 or call["transactions"]:
            call.require_operands(first + 2)
            count = call.value(first + 1, "u32")
        call.require_operands(first + 1, first + 2)
        arrivals, transactions = count, "int64_t(-1)"
        if call["transactions"] == "expect_tx":
            arrivals, transactions = "1u", f"int64_t({count})"
        flags = (
            call["order"] != "relaxed",
            call.instruction.opcode.startswith("mbarrier.arrive_drop"),
            call["transactions"] != "noComplete",
        )
        state = (
            f"executor_mbarrier_arrive(f_, {call.shared_address(first)}, {arrivals}, "
            f"{transactions}, {', '.join(str(flag).lower() for flag in flags)})"
        )
        if first == 0 or call.operands[0] == Name("_"):
            return f"{call.function} {state};"
        return f"{call.function} {call.assign(call.operands[0], 'b64', state)}"


@instruction("mbarrier.pending_count", _B64, operands=2)
def _pending_count(call: Call) -> str:
    return call.returned("u32", "mbarrier_pending", call.value(1, "b64"))


@instruction(
    "cp.async.mbarrier.arrive", optional("counted", "noinc"), _OWN_OBJECT, _B64, operands=1
)
def _copies_arrive(call: Call) -> str:
    return call.invoke("copy_arrive", call.shared_address(0), call.flag("counted"))


for _name in ("mbarrier.try_wait", "mbarrier.test_wait"):

    @instruction(_name, optional("parity", "parity"), optional("order", "acquire", "relaxed"),
                 _SCOPE, _OBJECT, _B64, operands=(3, 4))  # fmt: skip
    def _wait(call: Call) -> str:
        # A limit of the time that a GPU may wait is of no consequence here.
        acquires = "false" if call["order"] == "relaxed" else "true"
        function, kind = (
            ("mbarrier_wait_parity", "u32") if call["parity"] else ("mbarrier_wait", "b64")
        )
        arguments = call.shared_address(1), call.value(2, kind), acquires
        return call.returned("pred", function, *arguments)


runtime_call("fence.mbarrier_init.release.cluster", "fence_mbarrier_init")

# ------------------------------------------------------------------------- dependent launches


runtime_call("griddepcontrol.wait", "wait_for_grid")
runtime_call("griddepcontrol.launch_dependents", "launch_dependents")

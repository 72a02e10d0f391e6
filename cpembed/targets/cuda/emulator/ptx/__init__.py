"""Execution of inline PTX on this processor: every ``asm`` statement becomes C++.

``asm volatile("…" : outputs : inputs : clobbers)`` becomes one block
(:mod:`~cpembed.targets.cuda.emulator.ptx.statements`): operands are read into variables of their
registers' types, ``.reg`` declarations become variables, labels and ``bra`` become ``goto``, and
each instruction becomes what its row of the table makes of it, mostly a call of the runtime in
``native/``; then the outputs are written. There is no other definition of a device function than
its PTX.

**Adding an instruction** takes a row in a module of this package that :data:`ROW_MODULES` lists::

    @instruction("mbarrier.test_wait", required("test", "parity"),
                 optional("space", "shared::cta"), required("type", "b64"), operands=3)
    def _test_wait(call: Call) -> str:
        barrier, parity = call.address(1, "shared"), call.value(2, "u32")
        return call.returned("pred", "mbarrier_test_wait", barrier, parity)

and a function of the runtime, declared in ``native/ptx.h`` and defined in a header of
``native/runtime.cpp``. ``call.function`` declares ``f_``, under whose name, the opcode, calls are
counted; the runtime function takes it first, and ``CALLER`` in it is the line of the text.

- *An instruction of one lane* acts on ``lane`` at once (``executor_load``). It is told of lanes
  whose predicate is false if its row is ``predicated=True`` and passes ``call.predicate``.
- *A collective of a warp* makes a ``Request`` and calls ``collective`` (``executor_multiply``);
  the last lane to come runs it for all, and reads and writes the other lanes' registers through
  their requests. Registers are passed and returned by value (``ExecutorWords``): an array whose
  address is taken would be instrumented at every access. More than eight registers may go by a
  pointer to an array.
- *A collective of a warp group* is one of each of its warps, whose last one acts for all.

An instruction without a row, or with operands that do not fit, becomes an assertion that fails
where the text is compiled, and is harmless where the preprocessor leaves it out.
"""

from __future__ import annotations

from importlib import import_module

from cpembed.targets.cuda.emulator.ptx.statements import translate_inline_ptx

ROW_MODULES = (
    "arithmetic", "memory", "matrices", "atomics", "warps", "barriers", "bulk_copies",
    "warp_groups",
)  # fmt: skip
"""Modules of this package whose functions are rows of the table."""

for _module in ROW_MODULES:
    import_module(f"{__name__}.{_module}")

__all__ = ["translate_inline_ptx"]

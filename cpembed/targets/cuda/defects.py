"""What of TVM 0.27's CUDA code generation is worked around here, each with the defect.

- ``tirx.disable_cse_tir``: common subexpressions are named before loops are unrolled, so that what
  indexes registers is no constant, and ptxas keeps them in local memory.
- The code generator looks the target up in the scope that is open, though it is given one: it is
  opened.
- Arrays in shared and local memory shrink to the elements that are seen to be accessed, and what is
  behind a pointer is not seen: pointers into registers are made by ``access_ptr``, which keeps the
  array whole (:func:`cpembed.targets.cuda.writer.at`), and shared memory is touched at its end.
- Barriers are put around accesses of shared memory that are seen, which fails inside conditions:
  its pointers are made by ``address_of`` (:func:`cpembed.targets.cuda.writer.in_shared`).
- A pointer to an element of ``bfloat16`` has a type that the text does not define: such elements
  travel as their bits (:func:`cpembed.codegen.script.storage_dtype`).
- A fused multiply-add has no CUDA code: :func:`text_for_cuda` names CUDA's own function. A lowering
  registered for the target would reach every kernel of the process: where TVM finds one, it forms
  fused multiply-adds of vectors too.
"""

from __future__ import annotations

PASS_OPTIONS = {"tirx.disable_cse_tir": True}


def text_for_cuda(script: str) -> str:
    """A function's TVMScript, with what TVM's generator of CUDA lacks named as CUDA names it."""
    return script.replace("T.fma(", 'T.call_pure_extern("float32", "__fmaf_rn", ')

"""Code generation: derived programs to kernels, through TVM's TensorIR.

:func:`cpembed.targets.cpu.target.build` is the way in. A kernel's text is written from the program
(``nest``, ``blocking``, ``contraction``, ``packing``), then a back end replaces its blocks by
tensor intrinsics (``x86``) or leaves them as they are (``generic``). TVM is imported when something
is compiled, not before.
"""

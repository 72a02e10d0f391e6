"""Code generation: derived programs to kernels, through TVM's TensorIR.

``program_nest`` makes a nest of a program, passes rewrite it (``passes``, ``halo``, ``prefetch``,
``per_thread_packing``), and ``emit`` writes it as text with a target's ``InstructionText``.
``packing`` writes the kernels that pack operands; ``compiled`` puts both together. TVM is imported
when something is compiled, not before (``runtime``).
"""

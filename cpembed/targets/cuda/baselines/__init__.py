"""Libraries that kernels of a pack are compared with, on the machine with the GPU.

The modules go with a pack like those of :mod:`cpembed.targets.cuda.remote`; where torch or Triton
is missing, the comparison is left out.
"""

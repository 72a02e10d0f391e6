"""What runs on the machine with the GPU; it needs the CUDA driver, numpy and torch, and nothing of
cpembed. :mod:`benchmarks.gpu.there.main` is the command.
"""

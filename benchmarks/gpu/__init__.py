"""Kernels for Tensor Cores, built here and timed on a GPU elsewhere.

``python -m benchmarks.gpu.pack -o DIR|FILE.zip`` writes everything that a machine with a GPU needs
into one folder: kernels as cubins, what they compute, baselines, and :mod:`benchmarks.gpu.remote`,
which checks and times them there and needs the CUDA driver, Python, numpy and torch alone.
"""

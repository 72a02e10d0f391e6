"""Modules that run on the machine with the GPU.

They need the CUDA driver, numpy and torch, and nothing of cpembed.
:mod:`benchmarks.gpu.remote.main` is the command.
"""

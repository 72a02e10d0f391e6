"""Tensor Core: CUDA kernels for NVIDIA's GPUs, generated here and executed without one."""

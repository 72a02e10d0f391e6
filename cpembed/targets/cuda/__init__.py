"""Tensor Cores: CUDA kernels for NVIDIA GPUs, generated here and executed without one."""

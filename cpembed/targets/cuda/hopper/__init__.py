"""Kernels of warp-group products for Hopper GPUs: TMA, mbarriers, wgmma."""

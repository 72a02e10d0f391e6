"""Kernels of producer and consumer warps around a ring of stages: mbarriers, bulk copies, wgmma."""

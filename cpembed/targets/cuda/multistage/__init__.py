"""Kernels whose warps all copy by ``cp.async`` and multiply: schedules, copies, traffic."""

"""Tuning: the fastest embedding and schedule of a workload, found once and kept.

On a VTA, whose cycles are simulated, modules named ``vta_*`` propose and measure; on a CPU, whose
kernels are timed, those named ``cpu_*``. The others serve both.
"""

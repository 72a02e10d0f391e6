"""Execution of kernels: verification of their results, and their times."""

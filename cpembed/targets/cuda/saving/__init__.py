"""Saved kernels: folders that compile, run, compare and time themselves."""

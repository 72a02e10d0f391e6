"""Copies of the Tensor Memory Accelerator: what they can load and store, and how."""

"""Copies of the Tensor Memory Accelerator: which images of a factor they can load, and how."""

"""Packs of kernels for a machine with a GPU: selection of kernels, and the files of a pack."""

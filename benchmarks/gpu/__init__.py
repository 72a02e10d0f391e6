"""Suites of layers whose kernels for Tensor Cores are packed here and timed on a GPU elsewhere.

``python -m benchmarks.gpu.pack -o DIR|FILE.zip`` packs them as ``cpembed bench --pack`` does a
user's own layers, and adds kernels of TVM's own rules.
"""

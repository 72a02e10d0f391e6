"""Models with random weights, written as ONNX files, for tests and experiments: ``registry``.

This file imports nothing, so that tests are collected where ONNX is not installed.
"""

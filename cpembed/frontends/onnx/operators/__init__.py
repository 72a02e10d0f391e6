"""Translations of ONNX's operators, a module for each group of them; all of them: ``table``."""

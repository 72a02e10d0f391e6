"""Whole networks: matched, laid out, compiled, run."""

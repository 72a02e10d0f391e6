"""Executor library of the emulated targets: it compiles a generated text for this processor, loads
it, places arrays in its memory and reports faults with their source lines.

``native/`` holds the C++ that the runtimes share: fibers, faults, checks of plain accesses.
"""

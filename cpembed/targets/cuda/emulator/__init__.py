"""Execution of CUDA text on the host: PTX translated, faults named, traffic counted."""

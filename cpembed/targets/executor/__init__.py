"""Executor of the emulated targets; ``native/`` holds the C++ that their runtimes share."""

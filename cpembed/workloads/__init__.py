"""Workloads: operators at fixed sizes, their names, and suites of layers.

``family`` says what an operator is; ``einsum`` and ``convolutions`` make them of statements, and
``operators`` lists them. ``naming`` reads a workload from the words of the command line, ``suites``
has the shipped tables of layers, ``user_suites`` those of a user.
"""

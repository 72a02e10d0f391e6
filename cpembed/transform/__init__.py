"""Derivation of proven programs over packed operands from embeddings.

``derive`` makes the :class:`~cpembed.transform.program.DerivedProgram`: its loops, and with
``layout`` (on ``layout_builder``) the layout of each operand, as a list of ``rewrites`` whose
arithmetic is in ``index_algebra``. ``proof`` shows by isl that the program equals its workload.
"""

"""Computations as values: what an operator and an instruction have in common.

``index`` has index expressions, ``expression`` the scalar expressions over them, ``computation``
the loop nest around its statements; ``grammar`` and ``parser`` read all of it from text. ``ports``,
``joining`` and ``neutral`` answer questions about a computation's accesses. ``interpreter``
defines what a computation means, ``reference`` computes the same fast, and ``polyhedral`` puts
index expressions into isl.
"""

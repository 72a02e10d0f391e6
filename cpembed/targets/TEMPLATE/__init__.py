"""A complete small target, to be copied: read and change the files in this order.

1. ``unit.toml``: the instruction, its memories, the clock and the bus.
2. ``lower.py``: a derived program in the target's own terms, and which programs are rejected.
3. ``schedule.py``: schedules (here the orders of the loops) and their estimates.
4. ``execute.py``: the artifact that runs; here an interpreter that counts cycles.
5. ``target.py``: the class that ties them together, which the registry names.

``docs/add-a-target.md`` walks through them.
"""

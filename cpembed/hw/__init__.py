"""Hardware targets: instructions, the memories that feed them, and their TOML files.

``instruction`` and ``machine`` have the values, ``specification`` the tables of a file; ``loader``
and ``machine_reader`` check the tables and make the values, on the typed TOML of ``schema``.
"""

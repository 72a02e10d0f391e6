"""Libraries that people take away: compiled programs behind a plain C interface, without TVM.

A :class:`~cpembed.export.program.Program` describes a library, and
:func:`~cpembed.export.library.write_library` writes it.
"""

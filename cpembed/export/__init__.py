"""Libraries that people take away: compiled programs behind a plain C interface, without TVM.

:class:`~cpembed.export.program.Program` says what a library holds, and
:func:`~cpembed.export.library.write_library` writes it.
"""

"""Plug-ins for other compilers."""

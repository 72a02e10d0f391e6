"""Machines with scratchpads and DMA, alone or in a mesh: SW26010, and others described in TOML.

The method is that of Gao et al., swATOP, ICPP 2019.
"""

"""Machines with scratchpads and DMA, alone or in a mesh: SW26010, and any that a TOML describes.

Source of the method: Gao et al., swATOP, ICPP 2019.
"""

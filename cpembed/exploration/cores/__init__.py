"""Scratchpad accelerators of one intrinsic, as HASCO (Xiao et al., ISCA 2021) generates them."""

"""Fusion of a block of operators on a described machine: intermediates that stay on chip."""

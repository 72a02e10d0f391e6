"""Costs of embeddings: overheads, bounds, ranking, and time and energy on described machines."""

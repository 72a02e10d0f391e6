"""Search for the shapes of a matrix-product instruction that layers need fewest executions of."""

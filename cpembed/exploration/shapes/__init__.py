"""Which shape of a matrix-product instruction needs the fewest executions for a set of layers."""

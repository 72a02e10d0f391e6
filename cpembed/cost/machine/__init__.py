"""Time of a derived program on a described machine, from the specification alone."""

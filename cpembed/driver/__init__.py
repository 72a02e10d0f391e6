"""What the commands call: one module per command, each usable as a library."""

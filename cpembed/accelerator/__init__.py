"""Programs for accelerators of several instructions: planned, proven, executed, estimated."""

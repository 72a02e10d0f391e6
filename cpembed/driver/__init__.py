"""Driver: the pipeline of the commands, each command usable as a library."""

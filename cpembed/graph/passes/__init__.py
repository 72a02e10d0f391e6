"""From the graph that a front end writes to the one that is compiled: a pass a file."""

from cpembed.graph.passes.prepare import prepare

__all__ = ["prepare"]

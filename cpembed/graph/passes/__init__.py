"""Passes from the graph that a front end writes to the graph that is compiled."""

from cpembed.graph.passes.prepare import prepare

__all__ = ["prepare"]

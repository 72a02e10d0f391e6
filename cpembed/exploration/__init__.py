"""Searches of hardware for given layers: instruction shapes, and fronts of machine spaces."""

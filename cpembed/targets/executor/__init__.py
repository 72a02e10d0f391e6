"""What the executors of texts share: compiling a text for this host with a runtime, and keeping it;
arrays in memory of their own; places in a text; ``native/``: fibers, faults, plain accesses."""

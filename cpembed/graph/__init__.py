"""Networks as graphs of operators; the products among them are computations (:mod:`cpembed.ir`)."""

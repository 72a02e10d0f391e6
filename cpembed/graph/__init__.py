"""Networks as graphs of operators, of which the products are computations (:mod:`cpembed.ir`)."""

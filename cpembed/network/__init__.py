"""Networks on a target: layouts and kernels chosen, compiled to a library, verified, timed."""

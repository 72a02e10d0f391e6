"""VTA, the Versatile Tensor Accelerator: its instruction set, a simulator, and code generation."""

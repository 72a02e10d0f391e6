"""Running kernels: are they right, how fast are they."""

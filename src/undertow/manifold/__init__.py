"""What SGD does after zero loss: the geometry of the minimisers, d2Phi, and the limiting diffusion."""

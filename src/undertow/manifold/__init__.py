"""SGD after zero loss: the geometry of the manifold of minimisers, d2Phi, and the limiting diffusion."""

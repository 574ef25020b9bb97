"""The models of noise_equilibrium: each file builds a problem, its start and its observables."""

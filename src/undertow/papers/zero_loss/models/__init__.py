"""The models of zero_loss: each file builds a problem, its start and its observables."""

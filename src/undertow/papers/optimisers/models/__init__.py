"""The models of the claims on the averaged flow: each file builds problems, their starts and their observables."""

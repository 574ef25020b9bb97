"""The models of the claims on the averaged flow and on optimisers: problems, starts, noises and observables."""

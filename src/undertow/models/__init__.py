"""The papers' models: each a small file that builds a problem or a noise, its start and its observables."""

"""The claims of the paper `noise_equilibrium`, one file a claim or a family of like ones."""

"""The claims of the paper `noise_equilibrium`, one file per claim or family of similar claims."""

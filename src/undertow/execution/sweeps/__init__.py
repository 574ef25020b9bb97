"""Sweeps: one experiment at many points, on this machine or a cluster, kept as it goes."""

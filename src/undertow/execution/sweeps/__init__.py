"""Sweeps: one experiment at many points, on this machine or a cluster, stored block by block."""

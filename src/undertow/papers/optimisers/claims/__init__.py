"""The claims on the averaged flow, one file per claim or family of similar claims."""

"""The claims on the averaged flow and on optimisers, one file per claim or family of similar claims."""

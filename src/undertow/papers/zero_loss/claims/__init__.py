"""The claims of the paper `zero_loss`, one file per claim or family of similar claims."""

"""The claims of the paper `zero_loss`, one file a claim or a family of like ones."""

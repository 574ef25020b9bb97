"""What happens after SGD reaches zero loss (Li, Wang, Arora, arXiv 2110.06914)."""

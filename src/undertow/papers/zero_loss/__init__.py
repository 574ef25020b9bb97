"""What happens after SGD reaches zero loss (Li, Wang, Arora, arXiv 2110.06914)."""

__all__ = ["TITLE"]

TITLE = "What Happens after SGD Reaches Zero Loss?"

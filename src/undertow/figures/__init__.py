"""One style for all figures."""

"""Run experiments and store their results. The mathematics does not import this package."""

"""Scaling maps: which layer may be rescaled against which others, checked against a census and against the model."""

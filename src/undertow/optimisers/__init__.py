"""Optimisers as a metric with a state: SGD with momentum, RMSProp, Adam and AdamW, and any optax transformation."""

from undertow.optimisers.adaptive import Adam, AdamW, RMSProp
from undertow.optimisers.base import AbstractOptimiser
from undertow.optimisers.sgd import SGD

__all__ = ["SGD", "AbstractOptimiser", "Adam", "AdamW", "RMSProp"]

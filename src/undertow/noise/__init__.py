"""Noises: stochastic gradients of a problem, one module per kind."""

from undertow.noise.additive import Additive
from undertow.noise.base import AbstractNoise
from undertow.noise.check import check_noise
from undertow.noise.checks.table import NoiseCheck, NoiseCheckError
from undertow.noise.environments import Environments
from undertow.noise.isotropic import Isotropic
from undertow.noise.label import LabelNoise
from undertow.noise.minibatch import Minibatch
from undertow.noise.sampled import SampledNoise

__all__ = [
    "AbstractNoise",
    "Additive",
    "Environments",
    "Isotropic",
    "LabelNoise",
    "Minibatch",
    "NoiseCheck",
    "NoiseCheckError",
    "SampledNoise",
    "check_noise",
]

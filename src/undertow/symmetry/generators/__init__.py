"""Kinds of exponential symmetries: l(exp(amount A) params, z) = l(params, z) for a symmetric generator A."""

from undertow.symmetry.generators.base import AbstractDiagonal, AbstractSymmetry, Pair, Violation
from undertow.symmetry.generators.double_rotation import DoubleRotation
from undertow.symmetry.generators.exponential import Exponential
from undertow.symmetry.generators.rescaling import Rescaling
from undertow.symmetry.generators.scaling import Scaling

__all__ = [
    "AbstractDiagonal",
    "AbstractSymmetry",
    "DoubleRotation",
    "Exponential",
    "Pair",
    "Rescaling",
    "Scaling",
    "Violation",
]

"""undertow: predicts, simulates and steers what the noise of stochastic gradient descent does to a model.

Importing it imports nothing heavy: each public name loads its module on first use.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undertow.dynamics.average import average
    from undertow.dynamics.descend import descend
    from undertow.dynamics.diffuse import diffuse
    from undertow.dynamics.settle import settle
    from undertow.estimate import Estimate
    from undertow.execution.sweeps.sweep import sweep
    from undertow.grouped.hetero_regressor import HeteroRegressor
    from undertow.grouped.invariant_regressor import InvariantRegressor
    from undertow.manifold.drift import second_derivative
    from undertow.manifold.limit import Limit
    from undertow.noise.additive import Additive
    from undertow.noise.base import AbstractNoise
    from undertow.noise.check import check_noise
    from undertow.noise.environments import Environments
    from undertow.noise.isotropic import Isotropic
    from undertow.noise.label import LabelNoise
    from undertow.noise.minibatch import Minibatch
    from undertow.noise.sampled import SampledNoise
    from undertow.optimisers import SGD, AbstractOptimiser, Adam, AdamW, RMSProp
    from undertow.problem import AbstractProblem, Population, Problem, Regression
    from undertow.sensing.advise import advise
    from undertow.sensing.growth import lyapunov, tail_exponent
    from undertow.sensing.matrix_sensing import MatrixSensing
    from undertow.sensing.measurements import sensing_problem
    from undertow.symmetry.equilibrium import equilibrium
    from undertow.symmetry.flow import noether_flow
    from undertow.symmetry.generators import DoubleRotation, Exponential, Rescaling, Scaling
    from undertow.symmetry.search import find_symmetries
    from undertow.trajectory import Trajectory

__version__ = "0.2.0"

_HOME = {
    "AbstractNoise": "noise.base",
    "AbstractOptimiser": "optimisers",
    "AbstractProblem": "problem",
    "Adam": "optimisers",
    "AdamW": "optimisers",
    "Additive": "noise.additive",
    "DoubleRotation": "symmetry.generators",
    "Environments": "noise.environments",
    "Estimate": "estimate",
    "Exponential": "symmetry.generators",
    "HeteroRegressor": "grouped.hetero_regressor",
    "InvariantRegressor": "grouped.invariant_regressor",
    "Isotropic": "noise.isotropic",
    "LabelNoise": "noise.label",
    "Limit": "manifold.limit",
    "MatrixSensing": "sensing.matrix_sensing",
    "Minibatch": "noise.minibatch",
    "Population": "problem",
    "Problem": "problem",
    "Regression": "problem",
    "RMSProp": "optimisers",
    "Rescaling": "symmetry.generators",
    "SGD": "optimisers",
    "SampledNoise": "noise.sampled",
    "Scaling": "symmetry.generators",
    "Trajectory": "trajectory",
    "advise": "sensing.advise",
    "average": "dynamics.average",
    "check_noise": "noise.check",
    "descend": "dynamics.descend",
    "diffuse": "dynamics.diffuse",
    "equilibrium": "symmetry.equilibrium",
    "find_symmetries": "symmetry.search",
    "lyapunov": "sensing.growth",
    "noether_flow": "symmetry.flow",
    "second_derivative": "manifold.drift",
    "sensing_problem": "sensing.measurements",
    "settle": "dynamics.settle",
    "sweep": "execution.sweeps.sweep",
    "tail_exponent": "sensing.growth",
}

__all__ = [
    "SGD",
    "AbstractNoise",
    "AbstractOptimiser",
    "AbstractProblem",
    "Adam",
    "AdamW",
    "Additive",
    "DoubleRotation",
    "Environments",
    "Estimate",
    "Exponential",
    "HeteroRegressor",
    "InvariantRegressor",
    "Isotropic",
    "LabelNoise",
    "Limit",
    "MatrixSensing",
    "Minibatch",
    "Population",
    "Problem",
    "RMSProp",
    "Regression",
    "Rescaling",
    "SampledNoise",
    "Scaling",
    "Trajectory",
    "advise",
    "average",
    "check_noise",
    "descend",
    "diffuse",
    "equilibrium",
    "find_symmetries",
    "lyapunov",
    "noether_flow",
    "second_derivative",
    "sensing_problem",
    "settle",
    "sweep",
    "tail_exponent",
]


def __getattr__(name: str) -> object:
    if name == "claims":
        raise AttributeError("`undertow.claims` is now `undertow.verification.claims`: import it from there.")
    if name not in _HOME:
        raise AttributeError(f"module 'undertow' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"undertow.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

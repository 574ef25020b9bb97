"""The PyTorch bridge: the symmetries of a network as it is, and the move to its noise equilibrium.

`census` finds the symmetries and proves them, `equilibrate` moves a model to the point of its orbit where gradient
noise pushes no charge. Noise moments are gathered here; the equilibria are the closed forms of `undertow.symmetry`.
"""

try:
    from torch import nn as _nn  # noqa: F401
except ImportError as error:
    raise ImportError("`undertow.torch` needs PyTorch: install it with `pip install 'undertow[torch]'`.") from error

from undertow.analysis.torch import analyze
from undertow.torch._decay import gamma_of, lambda_of
from undertow.torch.census.axes import Axis, Relation
from undertow.torch.census.census import Census, census
from undertow.torch.data import EnvironmentBatchSampler, LabelNoise, PooledBatchSampler
from undertow.torch.equilibrium.equilibrate import Equilibrated, equilibrate
from undertow.torch.monitor.monitor import NoiseMonitor

__all__ = [
    "Axis",
    "Census",
    "EnvironmentBatchSampler",
    "Equilibrated",
    "LabelNoise",
    "NoiseMonitor",
    "PooledBatchSampler",
    "Relation",
    "analyze",
    "census",
    "equilibrate",
    "gamma_of",
    "lambda_of",
]

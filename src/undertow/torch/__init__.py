"""The PyTorch bridge: symmetries of a network, its gradient noise while it trains, and its noise equilibrium.

`census` finds the symmetries of a network and proves them. `equilibrate` moves a network to the point of its orbit
where gradient noise changes no charge on average. `NoiseMonitor` measures the noise in a training loop. The gradient
moments are measured here; the equilibria are the closed forms of `undertow.symmetry`.
"""

from typing import TYPE_CHECKING

try:
    from torch import nn as _nn  # noqa: F401
except ImportError as error:
    raise ImportError("`undertow.torch` needs PyTorch: install it with `pip install 'undertow[torch]'`.") from error

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.census import Census, census
from undertow.torch.census.scaling.check import ScalingCheck, ScalingReport, check_scaling, check_scaling_map
from undertow.torch.census.scaling.entries import ScalingEntry, ScalingMap, load_scaling_map
from undertow.torch.census.twins import narrow_twin
from undertow.torch.data import EnvironmentBatchSampler, LabelNoise, PooledBatchSampler
from undertow.torch.equilibrium.equilibrate import equilibrate
from undertow.torch.equilibrium.result import Equilibrium
from undertow.torch.monitor.monitor import NoiseMonitor

if TYPE_CHECKING:
    from undertow.analysis.torch import analyze

__all__ = [
    "Axis",
    "Census",
    "EnvironmentBatchSampler",
    "Equilibrium",
    "LabelNoise",
    "NoiseMonitor",
    "PooledBatchSampler",
    "ScalingCheck",
    "ScalingEntry",
    "ScalingMap",
    "ScalingReport",
    "Symmetry",
    "analyze",
    "census",
    "check_scaling",
    "check_scaling_map",
    "equilibrate",
    "load_scaling_map",
    "narrow_twin",
]

_REPLACED = {
    "Relation": "it was renamed: use `undertow.torch.Symmetry`",
    "Equilibrated": "it was renamed: use `undertow.torch.Equilibrium`",
    "gamma_of": "it was removed: `weight_decay` is PyTorch's lambda everywhere",
    "lambda_of": "it was removed: `weight_decay` is PyTorch's lambda everywhere",
}


def __getattr__(name: str) -> object:
    if name == "analyze":  # `undertow.analysis` imports this package, so its function is loaded on first use
        from undertow.analysis.torch import analyze

        return analyze
    advice = f": {_REPLACED[name]}" if name in _REPLACED else ""
    raise AttributeError(f"module 'undertow.torch' has no attribute {name!r}{advice}.")

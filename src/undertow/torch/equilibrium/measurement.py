"""Noise power, cost and imbalance of a network, measured on minibatches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from undertow.estimate import Estimate
from undertow.torch._copies import Batch, Loss, trainable
from undertow.torch.equilibrium.charge_moments import ChargeMoments
from undertow.torch.equilibrium.components import Component, memory_groups
from undertow.torch.equilibrium.gradients import batch_gradients, noise_power
from undertow.torch.equilibrium.objectives import Objective

__all__ = ["NoiseMeasurement", "measure_noise"]


@dataclass(frozen=True)
class NoiseMeasurement:
    """Noise of all parameters, and the moments of each symmetry."""

    noise: Estimate
    """Tr Sigma of a minibatch gradient over all trainable parameters."""
    cost: Estimate
    """The cost of the objective."""
    moments: dict[int, ChargeMoments]
    """Noise and weights of both sides, by the id of the symmetry."""
    imbalance: dict[int, float]
    """max |log(s+/s-)|, by the id of the symmetry."""


def measure_noise(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    parts: list[Component],
    objective: Objective,
    *,
    seed: int,
) -> NoiseMeasurement:
    """Measure the noise of all components on the batches."""
    params = trainable(model)
    gram, terms = np.zeros((len(batches), len(batches))), np.zeros(len(batches))
    moments: dict[int, ChargeMoments] = {}
    imbalance: dict[int, float] = {}
    for group in memory_groups(parts, params, len(batches)):
        stacks = batch_gradients(model, batches, loss, [name for part in group for name in part.parameters], seed)
        for part in group:
            own = {name: stacks.pop(name) for name in part.parameters}
            for stack in own.values():
                flat = stack.flatten(1).double() - stack[:1].flatten(1).double()  # the noise has mean zero
                gram += (flat @ flat.mT).numpy(force=True)
            values = {n: params[n].detach().double().reshape(params[n].shape or (1,)) for n in part.parameters}
            terms += objective.terms(own, values)
            if not part.symmetries:
                continue
            noise = objective.noise(own, part.symmetries)
            for symmetry in part.symmetries:
                moments[id(symmetry)] = objective.moments(symmetry, values, noise)
                imbalance[id(symmetry)] = objective.amount(symmetry, moments[id(symmetry)]).imbalance
    power = noise_power(gram)
    squares = sum(float(p.detach().double().square().sum()) for p in params.values())
    return NoiseMeasurement(power, objective.cost(power, squares, terms), moments, imbalance)

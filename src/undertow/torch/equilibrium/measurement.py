"""Noise power, cost and imbalance of a network, measured on minibatches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from undertow.estimate import Estimate
from undertow.torch._copies import Batch, Loss, trainable
from undertow.torch.equilibrium.amounts import general_amount
from undertow.torch.equilibrium.charge_moments import ChargeMoments, centred_noise, charge_moments
from undertow.torch.equilibrium.components import Component, memory_groups
from undertow.torch.equilibrium.gradients import batch_gradients, noise_power

__all__ = ["NoiseMeasurement", "measure_noise"]


@dataclass(frozen=True)
class NoiseMeasurement:
    """Noise of all parameters, and the moments of each symmetry."""

    noise: Estimate
    """Tr Sigma of a minibatch gradient over all trainable parameters."""
    cost: Estimate
    """F = step_size/4 Tr Sigma + weight_decay/2 |params|^2."""
    moments: dict[int, ChargeMoments]
    """Noise and weights of both sides, by the id of the symmetry."""
    imbalance: dict[int, float]
    """max |log(s+/s-)|, by the id of the symmetry."""


def measure_noise(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    parts: list[Component],
    *,
    step_size: float,
    weight_decay: float,
    seed: int,
) -> NoiseMeasurement:
    """Measure the noise of all components on the batches."""
    params = trainable(model)
    gram = np.zeros((len(batches), len(batches)))
    moments: dict[int, ChargeMoments] = {}
    imbalance: dict[int, float] = {}
    for group in memory_groups(parts, params, len(batches)):
        stacks = batch_gradients(model, batches, loss, [name for part in group for name in part.parameters], seed)
        for part in group:
            own = {name: stacks.pop(name) for name in part.parameters}
            for stack in own.values():
                flat = stack.flatten(1).double() - stack[:1].flatten(1).double()  # the noise has mean zero
                gram += (flat @ flat.mT).numpy(force=True)
            if not part.symmetries:
                continue
            noise = centred_noise(own, part.symmetries)
            values = {n: params[n].detach().double().reshape(params[n].shape or (1,)) for n in part.parameters}
            for symmetry in part.symmetries:
                moments[id(symmetry)] = charge_moments(symmetry, values, noise)
                amount = general_amount(symmetry, moments[id(symmetry)], step_size, weight_decay)
                imbalance[id(symmetry)] = amount.imbalance
    power = noise_power(gram)
    penalty = weight_decay / 2 * sum(float(p.detach().double().square().sum()) for p in params.values())
    value, error = power.value * step_size / 4, power.standard_error * step_size / 4
    return NoiseMeasurement(power, Estimate(value + penalty, error, len(batches)), moments, imbalance)

"""Moving along an orbit on randomised weights: the outputs stay, or it is no symmetry."""

from typing import Any

import torch
from torch import Tensor, nn

from undertow.torch.axes import Relation, move
from undertow.torch.copies import Loss, epsilon, forward, trainable

__all__ = ["HOLDS", "Bench", "random_transform"]

HOLDS = 1e-5
"""The relative change of outputs in float32 that rounding explains."""

SEED = 0
"""Of dropout: the same units fall out before and after the move."""


def random_transform(relation: Relation, seed: int, dtype: torch.dtype) -> Tensor:
    """Factors between 0.6 and 1.6, or well-conditioned matrices; never a power of two, which rounds nothing."""
    generator = torch.Generator().manual_seed(seed)
    if relation.block == 1:
        drawn = torch.rand(relation.size, generator=generator, dtype=torch.float64) - 0.5
        return (drawn + 0.05 * drawn.sign()).exp().to(dtype)
    width = relation.block
    drawn = torch.randn(relation.size // width, width, width, generator=generator, dtype=torch.float64)
    return (torch.eye(width, dtype=torch.float64) + 0.3 * drawn / width**0.5).to(dtype)


class Bench:
    """A copy of a network on which relations are tried."""

    def __init__(self, twin: nn.Module, loss: Loss, batch: Any):
        self.twin, self.loss, self.batch = twin, loss, batch
        self._before: dict[float | None, Tensor] = {}

    @torch.no_grad()
    def _outputs(self, eps: float | None) -> Tensor:
        with epsilon(self.twin, eps):
            return forward(self.twin, self.loss, self.batch, SEED)[1].clone()

    @torch.no_grad()
    def change(self, relation: Relation, seed: int = 0, eps: float | None = None) -> float:
        """How far outputs move along the orbit, relative to their size."""
        params = trainable(self.twin)
        if eps not in self._before:
            self._before[eps] = self._outputs(eps)
        before = self._before[eps]
        kept = {name: params[name].detach().clone() for name in relation.parameters}
        moved = move(kept, relation, random_transform(relation, seed, before.dtype))
        try:
            for name, value in moved.items():
                params[name].copy_(value)
            after = self._outputs(eps)
        finally:
            for name, value in kept.items():
                params[name].copy_(value)
        return float((after - before).norm() / before.norm().clamp_min(1e-300))

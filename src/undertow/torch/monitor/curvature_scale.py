"""Numbers that need the curvature of the loss, by Hessian-vector products on batches of a user, on request."""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undertow import _validate as validate
from undertow.torch._copies import Batch, Loss, forward, trainable, unwrap
from undertow.torch._isolation import isolated
from undertow.torch.monitor.hooks import GradientRecorder
from undertow.torch.monitor.noise_scale import NoiseScale, ratio_uncertainty
from undertow.torch.monitor.reading import Row
from undertow.torch.monitor.settings import StepRule

__all__ = ["MetricCurvature", "curvature_noise_scale", "fill_regime", "metric_curvature", "paused"]

LEAST_BATCHES = 9
"""Three batches make one estimate, and three estimates have a standard error."""


def curvature_noise_scale(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, *, batch_size: int, seed: int = 0
) -> NoiseScale:
    """Return B = tr(H Sigma)/G'HG, the batch size at which noise halves the best decrease of a quadratic loss.

    It is the noise scale of McCandlish et al. (2018, arXiv:1812.06162, equation 2.8), of which tr Sigma/|G|^2 is the
    case of a Hessian that is a multiple of the identity. Three batches with the gradients g, g' and the Hessian H of
    the third give the unbiased estimates (g - g')'H(g - g')/2 for tr(H Sigma)/batch_size and g'Hg' for G'HG. A triple
    takes two gradients and two Hessian-vector products. The model is not changed.

    **Arguments:**

    - `batches`: at least 9 independent batches of one size; three make one estimate.
    - `batch_size`: samples of each batch.

    >>> import torch
    >>> from undertow.torch.monitor.curvature_scale import curvature_noise_scale
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Linear(3, 1)
    >>> batches = [torch.randn(8, 3) + 1 for _ in range(30)]
    >>> scale = curvature_noise_scale(net, batches, lambda model, x: model(x).square().mean(), batch_size=8)
    >>> print(scale.measurements, scale.value > 0)
    10 True
    """
    batch_size = validate.positive_integer("curvature_noise_scale", "batch_size", batch_size)
    model, triples = unwrap(model), _triples("curvature_noise_scale", batches)
    with isolated(model, seed), sdpa_kernel(SDPBackend.MATH):  # other kernels have no second derivative
        pairs = np.array([_noise_and_signal(model, triple, loss) for triple in triples])
    noise, signal = pairs.T
    value = batch_size * noise.mean() / signal.mean() if signal.mean() > 0 else math.inf
    uncertainty = map(float, ratio_uncertainty(batch_size * noise, signal))
    means = float(noise.mean()), float(signal.mean())
    return NoiseScale("curvature", float(value), *uncertainty, *means, float(batch_size), len(triples))


@dataclass(frozen=True)
class MetricCurvature:
    """The mean curvature of S^1/2 H S^1/2 in the directions of the gradient noise, with S the metric of Adam."""

    value: float
    error: float
    """Standard error."""
    low: float
    """Lower end of a 95 % interval, as that of a noise scale."""
    high: float
    measurements: int


def metric_curvature(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, rules: Mapping[str, StepRule], *, seed: int = 0
) -> MetricCurvature:
    """Return lambda = tr(S H S Sigma)/tr(S Sigma), with S the metric of the steps of each parameter.

    eta lambda is the rate per step at which Adam relaxes along its noise, on average over the directions weighted by
    their noise. With the gradients g, g' of two batches and H of a third, (g - g')'S H S(g - g') and (g - g')'S(g - g')
    are unbiased for both sums, up to the same factor. The model is not changed.
    """
    model, triples = unwrap(model), _triples("measure_curvature", batches)
    inverse = torch.cat([_inverse_metric(rules[name], p).flatten() for name, p in trainable(model).items()])
    if inverse.isinf().all():
        raise ValueError("`measure_curvature()`: Adam or AdamW has made no step; train with one of them first.")

    def bent_and_plain(triple: Sequence[Batch]) -> tuple[float, float]:
        params = list(trainable(model).values())
        first, second = (_gradient(model, batch, loss, params) for batch in triple[:2])
        step = (first - second) / inverse
        (product,) = _hessian_products(model, triple[2], loss, params, [step])
        return float(step @ product), float(step @ (first - second))

    with isolated(model, seed), sdpa_kernel(SDPBackend.MATH):
        bent, plain = np.array([bent_and_plain(triple) for triple in triples]).T
    return MetricCurvature(float(bent.mean() / plain.mean()), *map(float, ratio_uncertainty(bent, plain)), len(triples))


def fill_regime(rows: Sequence[Row], curvature: MetricCurvature) -> None:
    """Set `regime` of the rows under Adam, (1 - b2)/(eta lambda); the note says so if lambda is not positive."""
    for row in rows:
        memory, eta = row["memory"], row["step_size"]
        if not isinstance(memory, float) or not isinstance(eta, float):
            continue
        if curvature.value > 0 and eta > 0:
            row["regime"] = 1 / (memory * eta * curvature.value)
        else:
            reason = "the step size is 0" if curvature.value > 0 else "the curvature along the noise is not positive"
            row["note"] = "; ".join(filter(None, [str(row["note"] or ""), f"the regime is not known: {reason}"]))


@contextmanager
def paused(recorder: GradientRecorder) -> Generator[None]:
    """Detach the hooks of a recorder, so that passes inside the context belong to no step."""
    attached = recorder.attached
    recorder.detach()
    try:
        yield
    finally:
        if attached:
            recorder.attach()


def _inverse_metric(rule: StepRule, parameter: nn.Parameter) -> Tensor:
    """Return 1/S of a parameter, infinity where Adam has not moved it."""
    inverse = rule.inverse_metric()
    return torch.full_like(parameter, torch.inf) if inverse is None else inverse


def _triples(call: str, batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    if len(batches) < LEAST_BATCHES:
        raise ValueError(
            f"`{call}(batches=...)`: {len(batches)} batches have no standard error; give at least {LEAST_BATCHES}."
        )
    return [batches[start : start + 3] for start in range(0, len(batches) - 2, 3)]


def _noise_and_signal(model: nn.Module, triple: Sequence[Batch], loss: Loss) -> tuple[float, float]:
    """Return (g - g')'H(g - g')/2 and g'Hg'."""
    params = list(trainable(model).values())
    first, second = (_gradient(model, batch, loss, params) for batch in triple[:2])
    along_first, along_second = _hessian_products(model, triple[2], loss, params, [first, second])
    signal = float(first @ along_second)
    return (float(first @ along_first) + float(second @ along_second)) / 2 - signal, signal


def _hessian_products(
    model: nn.Module, batch: Batch, loss: Loss, params: Sequence[nn.Parameter], vectors: Sequence[Tensor]
) -> list[Tensor]:
    """Return the products of the Hessian on a batch with vectors."""
    value, _ = forward(model, batch, loss)
    gradient = _flat(torch.autograd.grad(value, params, create_graph=True, allow_unused=True), params)
    products = (
        torch.autograd.grad(gradient @ vector, params, retain_graph=True, allow_unused=True) for vector in vectors
    )
    return [_flat(product, params).detach() for product in products]


def _gradient(model: nn.Module, batch: Batch, loss: Loss, params: Sequence[nn.Parameter]) -> Tensor:
    value, _ = forward(model, batch, loss)
    return _flat(torch.autograd.grad(value, params, allow_unused=True), params).detach()


def _flat(gradients: Sequence[Tensor | None], params: Sequence[nn.Parameter]) -> Tensor:
    pairs = zip(gradients, params, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])

"""Comparison of the recorded gradients with the gradients in `.grad`."""

import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch.monitor.arrays import Array, add_by_index, array_on, as_array, joined_array, namespace
from undertow.torch.monitor.batch_sums import BatchSums
from undertow.torch.monitor.sample_gradients import gradient_probe, matrix_probes
from undertow.torch.monitor.scale_requests import squares_over_samples
from undertow.torch.monitor.statistics import StatisticRequest
from undertow.torch.monitor.tensors import at_least_single

__all__ = ["NOT_FINITE", "Compared", "Comparison", "compare_gradients"]

GRADIENT_RTOL = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Tolerated difference between the gradient in `.grad` and the recorded one, by dtype of the parameter."""
HALF_RTOL = 5e-2
"""The same in half precision, which rounds by a percent."""
ZERO_SUM_RTOL = 1e-5
"""A sum of gradients below this, relative to the gradients of the samples, is rounding."""
NOT_FINITE = "the gradient is not finite"
ONE_SAMPLE = "one sample per step does not show noise: use batches of at least 2"
CAUSES = (
    "the parameter is used outside its module, or `.grad` held something before the backward pass (call "
    "`zero_grad()`), or was changed, or a layer that had to be run again draws random numbers (dropout)"
)


Requested = Mapping[str, Sequence[StatisticRequest]]
"""The statistics that are recorded, by parameter."""
PROBED_ENTRIES = 2**22
"""Entries of gradients that are copied to make their projections together."""


class Compared(NamedTuple):
    """The comparison of a step, on the host."""

    problem: str | None
    """Why the gradients of a required parameter do not agree, None if they do."""
    samples: int
    unmatched: dict[str, str]
    """Parameters that are not required and whose gradients do not agree, with the reason."""
    second: dict[str, float]
    """Sum over samples of the squared gradient, by parameter, before gradient scaling or clipping."""
    square: dict[str, float]
    """Square of the gradient, likewise."""


class Comparison:
    """Recorded gradients beside those in `.grad`, as numbers for the device of the model.

    The gradients may change once this exists: the numbers follow from copies when they are needed. `read(values)`
    returns whether the gradients agree, from `numbers` on the host.
    """

    @torch.no_grad()
    def __init__(
        self,
        sums: BatchSums,
        gradients: Mapping[str, Tensor],
        rtol: Mapping[str, float],
        requests: Requested,
        required: AbstractSet[str],
        unmatched: dict[str, str],
    ):
        self._names, self._required, self._unmatched = list(gradients), required, unmatched
        self._sums, self._requests, self._rtol = sums, requests, [rtol[name] for name in gradients]
        projected = list(_projected(gradients, sums.flipped).values())
        self.device = projected[0].device
        self._sizes = [x.numel() for x in projected]
        self._actual = joined_array(projected, self.device)
        self._norms = joined_array(torch._foreach_norm(list(gradients.values())), self.device)

    @functools.cached_property
    def samples(self) -> Array:
        """Number of samples in the sums."""
        return as_array(torch.as_tensor(self._sums.counted, device=self.device).double())

    @property
    def scale(self) -> Array:
        """Factor between `.grad` and the recorded gradients, which comes from gradient scaling or clipping."""
        return self._compared[0]

    @property
    def numbers(self) -> Array:
        """What `read` needs on the host."""
        return self._compared[1]

    @functools.cached_property
    @torch.no_grad()
    def _compared(self) -> tuple[Array, Array]:
        device, actual, sums = self.device, self._actual, self._sums
        nothing = lambda size: torch.zeros(size, dtype=torch.float64, device=device)
        parts = zip(self._names, self._sizes, strict=True)
        recorded = joined_array([sums.probes[n] if n in sums.probes else nothing(size) for n, size in parts], device)
        spreads = squares_over_samples(sums, self._requests, self._names, device)
        owner = array_on(np.repeat(np.arange(len(self._names)), self._sizes), device)
        by_parameter = lambda values: add_by_index(values, owner, len(self._names))
        xp = namespace(actual)
        with np.errstate(all="ignore"):  # `read` judges whether the numbers are finite
            product, size = by_parameter(recorded * actual), by_parameter(recorded**2)
            scale = self._common_scale(product, size, spreads, sums.half)
            norms = xp.sqrt(by_parameter(actual**2))
            errors = xp.sqrt(by_parameter((scale * recorded - actual) ** 2))
            head = xp.stack([self.samples, product.sum(), size.sum(), scale])
            numbers = xp.concatenate([head, norms, errors, spreads, self._norms**2])
            return xp.where(abs(scale - 1) < 1e-3, 1.0, scale), numbers

    def _common_scale(self, product: Array, size: Array, spreads: Array, half: AbstractSet[str]) -> Array:
        """Return the factor between `.grad` and the recorded gradients, 1 if these cancel over the samples.

        Where parameters are required it is their least-squares factor, else a weighted median of all, which some
        parameters that do not agree leave as it is. Rounding in half precision would give a factor that parameters in
        full precision do not have.
        """
        xp = namespace(size)
        chosen = [name in self._required for name in self._names]
        chosen = chosen if any(chosen) else [True] * len(chosen)
        precise = [own and name not in half for own, name in zip(chosen, self._names, strict=True)]
        mask, narrow = array_on([chosen, precise], self.device) * 1.0
        mask = xp.where((narrow * size).sum() > 0, narrow, mask)
        total = (mask * size).sum()
        if self._required:
            scale = (mask * product).sum() / total
        else:
            used = (mask > 0) & (size > 0)
            ratios = xp.where(used, product / size, torch.inf)
            # weights are squares of `.grad` along the recorded gradients, because some of the latter may be wrong
            order = xp.argsort(ratios)
            below = xp.where(used, product**2 / size, 0.0)[order].cumsum(0)
            scale = ratios[order][(below < below[-1] / 2).sum().clip(max=len(ratios) - 1)]
        cancelled = total <= ZERO_SUM_RTOL**2 * (mask * spreads).sum()  # at a minimum there is nothing left to compare
        return xp.where(cancelled, 1.0, scale)

    def read(self, values: np.ndarray) -> Compared:
        """Return the comparison, from `numbers` on the host."""
        (samples, product, size, scale), rest = values[:4], values[4:]
        if samples == 0 or not np.isfinite([product, size]).all():
            return _failed(NOT_FINITE)
        if samples < 2:
            return _failed(ONE_SAMPLE)
        if not 0 < scale < 1 + HALF_RTOL:
            return _failed(f"the gradients in `.grad` are {scale:.3g} times those that were recorded: {CAUSES}")
        unmatched = dict(self._unmatched)
        norms, errors, spreads, squares = np.split(rest, 4)
        for name, rtol, norm, error, spread in zip(self._names, self._rtol, norms, errors, spreads, strict=True):
            if error > rtol * (norm + scale * spread**0.5):
                problem = f"the gradient of {name} is not the one that was recorded: {CAUSES}"
                if name in self._required:
                    return _failed(problem)
                unmatched[name] = problem
        if unmatched and not set(self._names) - set(unmatched):
            return _failed(next(iter(unmatched.values())))
        factor = 1.0 if abs(scale - 1) < 1e-3 else scale
        used = [k for k, name in enumerate(self._names) if name in self._sums.probes and name not in unmatched]
        second = {self._names[k]: float(spreads[k]) for k in used}
        square = {self._names[k]: float(squares[k] / factor**2) for k in used}
        return Compared(None, int(samples), unmatched, second, square)


def _failed(problem: str) -> Compared:
    return Compared(problem, 0, {}, {}, {})


def compare_gradients(
    sums: BatchSums,
    parameters: Mapping[str, nn.Parameter],
    requests: Requested,
    required: AbstractSet[str] | None = None,
) -> Comparison | str:
    """Compare the recorded gradients with those in `.grad`, by probes; return why if they cannot be compared.

    A parameter of `required` (by default all) whose gradients do not agree is a problem; others are listed.
    """
    if sums.samples == 0:
        return (
            "the hooks recorded no backward pass since the last step: check that this model is the one that trains. "
            "Compile a model before the monitor is created"
        )
    if sums.samples < 2:
        return ONE_SAMPLE
    required = set(parameters) if required is None else required
    gradients: dict[str, Tensor] = {}
    rtol: dict[str, float] = {}
    unmatched: dict[str, str] = {}
    for name, parameter in parameters.items():
        if name in sums.not_separable:
            if name not in required:
                unmatched[name] = sums.not_separable[name]
            continue
        gradient = _gradient(name, parameter, sums)
        if isinstance(gradient, str) and name in required:
            return gradient
        if isinstance(gradient, str):
            unmatched[name] = gradient
        elif gradient is not None:
            gradients[name] = gradient
            rtol[name] = HALF_RTOL if name in sums.half else GRADIENT_RTOL.get(parameter.dtype, HALF_RTOL)
    if not gradients:
        reasons = {**sums.not_separable, **unmatched}
        return next(iter(reasons.values()), "no parameter was used in this step")
    return Comparison(sums, gradients, rtol, requests, required, unmatched)


def _gradient(name: str, parameter: nn.Parameter, sums: BatchSums) -> Tensor | str | None:
    """Return the gradient of a parameter, why there is none, or None if it was not used in this step."""
    if not parameter.requires_grad:
        return f"{name} does not train any more: take a new census"
    gradient = parameter.grad
    if gradient is None and name not in sums.probes:
        return None
    if gradient is None or gradient.is_sparse:
        return f"the gradient of {name} is not in its `.grad` as a dense tensor: use `loss.backward()`"
    return at_least_single(gradient)


def _projected(gradients: Mapping[str, Tensor], flipped: Mapping[str, bool | None]) -> dict[str, Tensor]:
    """Return the projections of gradients, those of small matrices of one shape together."""
    groups: dict[tuple, list[str]] = {}
    for name, gradient in gradients.items():
        alone = flipped.get(name) is None or gradient.ndim != 2
        key = name if alone else (gradient.shape, gradient.dtype, gradient.device, flipped[name])
        groups.setdefault((key,), []).append(name)
    result = {}
    for group in groups.values():
        first = gradients[group[0]]
        most = max(1, PROBED_ENTRIES // max(1, first.numel()))
        for some in (group[start : start + most] for start in range(0, len(group), most)):
            if len(some) == 1:
                result[some[0]] = gradient_probe(gradients[some[0]], flipped.get(some[0]))
            else:
                stack = torch.stack([gradients[name] for name in some])
                result |= zip(some, matrix_probes(stack, bool(flipped[some[0]])).unbind(), strict=True)
    return {name: result[name] for name in gradients}

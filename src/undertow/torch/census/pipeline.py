"""The steps of a census: candidates, null spaces of moments, proofs, and a second search where candidates fail."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from undertow.torch._copies import (
    Batch,
    Loss,
    OnePrecision,
    cast_batch,
    cast_model,
    loss_bypasses_outputs,
    model_copy,
    observe_random_numbers,
    random_projection,
    randomise,
)
from undertow.torch._inputs import try_loss
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import Level, attention_levels, length_levels, plain_axes
from undertow.torch.census.couplings import coupled_levels
from undertow.torch.census.moments import AxisMoments, enough_draws
from undertow.torch.census.proof import (
    LARGE_SCALES,
    Refuted,
    Situation,
    hold_with_eps,
    situations,
    verify_symmetries,
)
from undertow.torch.census.remaining import remaining_symmetries, without_sums
from undertow.torch.census.samples import too_few_samples
from undertow.torch.census.search import LARGE_EPS, NO_EPS, search_levels, search_whole_parameters
from undertow.torch.census.unexplained import Unexplained, index_null_space

__all__ = ["Searched", "search"]


class Searched(NamedTuple):
    """Symmetries found in double precision, and tested in all situations."""

    exact: list[Symmetry]
    approximate: list[Symmetry]
    refuted: list[Refuted]
    unclear: list[str]
    zero_axes: list[Axis]
    """Axes without a gradient."""
    unexplained: tuple[Unexplained, ...]


def _tried_copy(model: nn.Module, batch: Batch, loss: Loss, seed: int) -> nn.Module:
    """Return a copy in double precision with random weights, on which the loss can be computed."""
    twin = model_copy(model, torch.float64)
    with OnePrecision():
        randomise(twin, seed)
        try_loss("census", twin, cast_batch(batch, torch.float64), loss, seed, converted=True)
    return twin


def search(model: nn.Module, batch: Batch, loss: Loss, seed: int, count: bool | None) -> tuple[Searched, nn.Module]:
    """Search the symmetries on a copy in double precision and test them in all situations.

    Return them, and the copy in single precision. Which indices are coupled is found in single precision too, where
    passes take half of the time: zeros are exact in every precision.
    """
    twin = cast_model(_tried_copy(model, batch, loss, seed), model, torch.float32)
    with OnePrecision(torch.float32):
        axes = plain_axes(twin)
        plain, heads = length_levels(twin, axes), attention_levels(twin, axes)
        single = cast_batch(batch, torch.float32)
        observed, stochastic = observe_random_numbers(twin, loss)
        coupled = coupled_levels(twin, single, observed, axes, [*plain, *heads], seed + 6000)
        candidates = [*plain, *coupled, *heads]
    twin = cast_model(twin, model, torch.float64)
    batch = cast_batch(batch, torch.float64)
    with OnePrecision():
        moments = functools.partial(
            AxisMoments, twin, batch, searched=candidates, draws=enough_draws(candidates), stochastic=any(stochastic)
        )
        strict = moments(loss, eps=LARGE_EPS, seed=seed)
        strict_found = search_levels(candidates, strict, [])
        loose = moments(loss, eps=NO_EPS, seed=seed + 1000, known=strict_found)
        loose_found = search_levels(candidates, loose, strict_found)
        strict_found, loose_found = loose.with_blocks(strict_found), loose.with_blocks(loose_found)
        if loss_bypasses_outputs(twin, batch, loss, seed, strict.gradient_size):
            # the loss may break symmetries of the outputs
            of_outputs = moments(random_projection(loss, seed), eps=LARGE_EPS, seed=seed + 4000)
            strict_found += of_outputs.with_blocks(search_levels(candidates, of_outputs, [*strict_found, *loose_found]))
        whole, doubts = search_whole_parameters(twin, batch, loss, [*strict_found, *loose_found], strict, seed)
        randomise(twin, seed + 2000)
        held = hold_with_eps(twin, batch, loss, whole, strict.covering_seeds(), LARGE_EPS)
        exact = [*strict_found, *held]
        approximate = [*loose_found, *(symmetry for symmetry in whole if symmetry not in held)]
        refuted: list[Refuted] = []
        tried = situations(seed + 5000, any(stochastic))
        verify = functools.partial(verify_symmetries, twin, batch, loss, own_weights=list(model.parameters()))
        # random weights are drawn once; the own weights of the model replace them
        for own in (False, True):
            several = [s for s in tried if s.own_weights == own]
            some = [s for s in several if not s.evaluation and s.split == 1 and s.scale <= 8]
            approximate, failed = verify(approximate, some, eps=NO_EPS)
            exact, others = verify(exact, several)
            refuted += [*others, *failed]
        if any(not r.by_loss for r in refuted):
            exact, failed = _search_again(exact, candidates, strict, moments, verify, tried, seed)
            refuted += failed
        space = index_null_space(twin, batch, loss, count, eps=LARGE_EPS, seed=seed + 7000)
        if isinstance(space, Unexplained):
            unexplained: tuple[Unexplained, ...] = (space,)
        else:
            known = [*exact, *(r.symmetry for r in refuted)]
            remaining = strict.with_blocks(remaining_symmetries(space, known))
            if remaining:
                randomise(twin, seed + 2000)
                more, failed = verify(remaining, tried)
                exact = without_sums(space, [*exact, *more]) if more else exact
                refuted += failed
            unexplained = space.unexplained([*exact, *(r.symmetry for r in refuted)])
    unclear = [*strict.unclear, *loose.unclear, *doubts, *too_few_samples(axes, strict.inactive, batch)]
    searched = Searched(exact, approximate, refuted, unclear, strict.zero_axes, unexplained)
    return searched, cast_model(twin, model, torch.float32)


def _search_again(
    exact: list[Symmetry],
    candidates: list[Level],
    strict: AxisMoments,
    moments: Callable[..., AxisMoments],
    verify: Callable[..., tuple[list[Symmetry], list[Refuted]]],
    tried: Sequence[Situation],
    seed: int,
) -> tuple[list[Symmetry], list[Refuted]]:
    """Return the symmetries with those that draws of larger weights show, and candidates that fail.

    Where a layer such as ReLU6 saturates at large weights only, the null space at random weights has vectors that are
    no symmetries, and a symmetry may be a combination of two of them.
    """
    try:
        enlarged = moments(strict.loss, eps=LARGE_EPS, seed=seed + 8000, largest=LARGE_SCALES[0])
    except ValueError:  # gradients are not finite at large weights
        return exact, []
    again = strict.with_blocks(search_levels(candidates, strict.joined(enlarged), exact))
    randomise(strict.twin, seed + 2000)
    more, failed = verify(again, tried)
    return [*exact, *more], failed

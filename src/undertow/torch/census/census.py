"""The census of a network: its exponential symmetries, found from gradients at random weights and proved.

For every axis of every parameter the moment m_i = sum G W over the other axes (G the gradient) is the derivative of the
loss with respect to the logarithm of a scale of index i. Symmetries are the linear relations between moments that hold
at every draw of weights, a null space. Whether a block of indices allows a GL(d) beyond scales follows from the
matrices G W'.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undertow.torch._copies import (
    Batch,
    DoublePrecision,
    Loss,
    cast_batch,
    draws_random_numbers,
    loss_bypasses_outputs,
    model_copy,
    random_projection,
    randomise,
    trainable,
    unwrap,
)
from undertow.torch._isolation import isolated
from undertow.torch._renamed import Renamed
from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.candidates import attention_heads, levels
from undertow.torch.census.moments import MAX_DRAWS, AxisMoments
from undertow.torch.census.names import name_symmetry
from undertow.torch.census.proof import OUTPUT_RTOL, OrbitTrial, Refuted, situations, verify_symmetries
from undertow.torch.census.search import LARGE_EPS, NO_EPS, search_levels, search_whole_parameters

__all__ = ["Census", "census", "check_census"]

ONE_THREAD_LIMIT = 10**8
"""Number of parameters up to which the census runs on one thread. It makes a hundred passes over a few tokens: several
threads gain nothing on so many small operations, and where another program occupies a core they wait for each other at
every one of them (23 million parameters, two cores: 8 seconds with one thread, more than 60 with two threads beside two
busy programs)."""


@dataclass(frozen=True)
class Census:
    """The symmetries of a network. Iteration goes over the exact ones."""

    symmetries: tuple[Symmetry, ...]
    """Exact symmetries, each proved on its orbit: outputs and loss do not change."""
    approximate: tuple[Symmetry, ...]
    """Symmetries up to the eps of a norm; `change` is the change of the outputs at random weights."""
    unclear: tuple[str, ...]
    """Candidates that could not be interpreted, or that failed in a situation, in sentences."""
    without_gradient: tuple[str, ...]
    """Parameters, or parts of them, that the loss does not depend on."""
    frozen: tuple[str, ...]
    """Parameters that do not train. SGD has no symmetry that would have to move them."""
    free: tuple[str, ...]
    """Trainable parameters that no exact symmetry moves."""
    broken: tuple[Symmetry, ...] = ()
    """Symmetries of the outputs that the loss breaks, by a penalty on weights for instance; training does not have
    them. `change` is the change of the loss."""

    relations = Renamed("symmetries")
    silent = Renamed("without_gradient")

    def __iter__(self) -> Iterator[Symmetry]:
        return iter(self.symmetries)

    def __len__(self) -> int:
        return len(self.symmetries)

    def __str__(self) -> str:
        lines = [f"{len(self.symmetries)} exact symmetries"]
        lines += [f"  {symmetry}  [outputs change by {symmetry.change:.0e}]" for symmetry in self.symmetries]
        if self.approximate:
            lines.append(f"{len(self.approximate)} approximate symmetries")
            lines += [f"  {symmetry}  [outputs change by {symmetry.change:.0e}]" for symmetry in self.approximate]
        if self.broken:
            lines.append(f"{len(self.broken)} symmetries of the outputs that the loss breaks")
            lines += [f"  {symmetry}  [the loss changes by {symmetry.change:.0e}]" for symmetry in self.broken]
        for title, names in (
            ("no gradient", self.without_gradient),
            ("frozen", self.frozen),
            ("moved by no symmetry", self.free),
            ("unclear", self.unclear),
        ):
            if names:
                lines.append(f"{title}: {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if names[8:] else ""))
        return "\n".join(lines)


def census(model: nn.Module, batch: Batch, loss: Loss, *, seed: int = 0) -> Census:
    """Return the exponential symmetries of a network, each named and proved. The network itself is not changed.

    A symmetry is proved by moving along its orbit. Outputs and loss must not change, at random weights of several
    sizes and at the weights of the model, each time with other random numbers for dropout.

    **Arguments:**

    - `model`: any `nn.Module`, also inside `torch.compile` or a data-parallel wrapper.
    - `batch`: a small batch. `loss(model, batch)` must call the model it is given and return a scalar tensor.
    - `seed`: seed of the random weights.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> for symmetry in census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean()):
    ...     print(symmetry)
    rescaling, 7 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]
    """
    model = unwrap(model)
    large = sum(p.numel() for p in model.parameters()) > ONE_THREAD_LIMIT
    with isolated(model, seed), nullcontext() if large else _single_threaded():
        return _census(model, batch, loss, seed)


@contextmanager
def _single_threaded() -> Generator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_thread():
            yield
    finally:
        torch.set_num_threads(threads)


def _census(model: nn.Module, batch: Batch, loss: Loss, seed: int) -> Census:
    names = list(trainable(model))
    if not names:
        raise ValueError("`census`: no parameter of the model trains (requires_grad is False everywhere).")
    searched = _search(model, batch, loss, seed)
    small = model_copy(model, torch.float32)
    randomise(small, seed + 2000)
    trial = OrbitTrial(small, cast_batch(batch, torch.float32), loss, seed + 2000)
    heads = attention_heads(model)

    def named(symmetry: Symmetry, change: float) -> Symmetry:
        exact = symmetry not in searched.approximate
        return name_symmetry(model, heads, replace(symmetry, exact=exact, change=change))

    both = [named(symmetry, trial.change(symmetry, seed)) for symmetry in [*searched.exact, *searched.approximate]]
    unclear = [
        *searched.unclear,
        *(
            f"{symmetry}: gradients have it, but outputs change by {symmetry.change:.0e} along its orbit"
            for symmetry in both
            if symmetry.exact and symmetry.change > OUTPUT_RTOL
        ),
        *(
            f"{named(r.symmetry, r.change)}: outputs change by {r.change:.0e} along its orbit {r.situation}"
            for r in searched.refuted
            if not r.by_loss
        ),
    ]
    proved = [symmetry for symmetry in both if symmetry.exact and symmetry.change <= OUTPUT_RTOL]
    moved = {name for symmetry in proved for name in symmetry.parameters}
    order = {name: place for place, name in enumerate(names)}
    place = lambda symmetry: min((order[a.parameter], int(a.index.min())) for a in symmetry.minus or symmetry.plus)
    return Census(
        symmetries=tuple(sorted(proved, key=place)),
        approximate=tuple(sorted((symmetry for symmetry in both if not symmetry.exact), key=place)),
        unclear=tuple(unclear),
        without_gradient=tuple(dict.fromkeys(map(str, searched.zero_axes))),
        frozen=tuple(name for name, p in model.named_parameters() if not p.requires_grad),
        free=tuple(name for name in names if name not in moved),
        broken=tuple(sorted((named(r.symmetry, r.change) for r in searched.refuted if r.by_loss), key=place)),
    )


class _Searched(NamedTuple):
    """Symmetries found in double precision, and tested in all situations."""

    exact: list[Symmetry]
    approximate: list[Symmetry]
    refuted: list[Refuted]
    unclear: list[str]
    zero_axes: list[Axis]
    """Axes without a gradient."""


def _search(model: nn.Module, batch: Batch, loss: Loss, seed: int) -> _Searched:
    """Search the symmetries on a copy in double precision and test them in all situations."""
    twin = model_copy(model, torch.float64)
    candidates = levels(twin)
    draws = max([2, *(math.ceil(3 * len(level.axes) / level.size) for level in candidates)])
    draws = min(draws, MAX_DRAWS)
    batch = cast_batch(batch, torch.float64)
    with DoublePrecision():
        randomise(twin, seed)
        stochastic = draws_random_numbers(twin, batch, loss)
        moments = lambda loss, eps, seed: AxisMoments(
            twin, batch, loss, candidates, eps, draws, seed, stochastic=stochastic
        )
        strict, loose = moments(loss, LARGE_EPS, seed), moments(loss, NO_EPS, seed + 1000)
        strict_found = search_levels(candidates, strict, [])
        loose_found = search_levels(candidates, loose, strict_found)
        strict_found, loose_found = strict.with_blocks(strict_found), loose.with_blocks(loose_found)
        if loss_bypasses_outputs(twin, batch, loss, seed):  # the loss may break symmetries of the outputs
            of_outputs = moments(random_projection(loss, seed), LARGE_EPS, seed + 4000)
            strict_found += of_outputs.with_blocks(search_levels(candidates, of_outputs, [*strict_found, *loose_found]))
        whole, doubts = search_whole_parameters(twin, batch, loss, [*strict_found, *loose_found], strict, seed)
        randomise(twin, seed + 2000)
        exact, approximate = _split_by_eps(
            OrbitTrial(twin, batch, loss, seed + 2000), strict_found, [*loose_found, *whole], seed
        )
        tried, own_weights = situations(seed + 5000, stochastic), [p.detach() for p in model.parameters()]
        approximate, refuted = verify_symmetries(
            twin, batch, loss, approximate, tried, own_weights=own_weights, eps=NO_EPS
        )
        randomise(twin, seed + 2000)
        exact, others = verify_symmetries(twin, batch, loss, exact, tried, own_weights=own_weights, eps=None)
    unclear = [*strict.unclear, *loose.unclear, *doubts]
    return _Searched(exact, approximate, [*others, *refuted], unclear, strict.zero_axes)


def _split_by_eps(
    trial: OrbitTrial, exact: Sequence[Symmetry], others: Sequence[Symmetry], seed: int
) -> tuple[list[Symmetry], list[Symmetry]]:
    """Return the exact symmetries with those of the others that hold at a large eps too, and the rest."""
    changes = [trial.change(symmetry, seed, LARGE_EPS) for symmetry in others]
    hold = [symmetry for symmetry, change in zip(others, changes, strict=True) if change <= OUTPUT_RTOL]
    return [*exact, *hold], [symmetry for symmetry, change in zip(others, changes, strict=True) if change > OUTPUT_RTOL]


def check_census(function: str, census: Census, params: dict[str, Tensor]) -> None:
    """Raise a `ValueError` if the census moves something that these trainable parameters do not have."""
    for symmetry in census.symmetries:
        for axis in symmetry.axes:
            parameter = params.get(axis.parameter)
            shape = None if parameter is None else tuple(parameter.shape) or (1,)
            if shape is None or shape[axis.axis] != axis.length:
                raise ValueError(
                    f"`{function}`: the census moves {axis}, which this model does not have as a trainable parameter; "
                    "take a census of this model as it trains now."
                )

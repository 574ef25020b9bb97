"""Which exponential symmetries a network has, found from gradients at random weights and proved on outputs and loss.

For every axis of every parameter the moment m_i = sum G W over the other axes (G the gradient) says how the loss
changes when index i is scaled. Symmetries are the relations between moments that hold at every draw of weights: a null
space. What a block of indices allows beyond scales, GL(d), shows in the matrices G W'.
"""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undertow.torch._copies import (
    Loss,
    Precise,
    as_double,
    draws_numbers,
    epsilon,
    forward,
    loss_beyond_outputs,
    model_copy,
    projected,
    randomise,
    trainable,
    unwrap,
)
from undertow.torch._threads import one_thread
from undertow.torch.census.axes import Relation, move
from undertow.torch.census.hints import Level, atoms, attention_heads, levels
from undertow.torch.census.moments import MOST_DRAWS, Moments
from undertow.torch.census.names import name_relation
from undertow.torch.census.nullspace import CLEAR, NULL, Found, integer_null_space, sparse_basis
from undertow.torch.census.proof import HOLDS, Bench, refute, situations
from undertow.torch.equilibrium.gather import undisturbed

__all__ = ["Census", "census", "refuse_foreign"]

LARGE_EPS, NO_EPS = 0.1, 1e-30
"""With a large eps in every norm only exact symmetries are left; with none the approximate ones are exact too."""
STEP = 1e-7
"""Of differences of outputs in double precision: the error is as large, below what counts as zero."""
LARGE = 10**8
"""Parameters up to which one thread does the work. It is a hundred passes over a few tokens: threads gain nothing on
so many small operations, and where another program holds a core they wait for each other at every one of them
(23 million parameters, two cores: 8 seconds with one thread, more than 60 with two beside two busy programs)."""


@dataclass(frozen=True)
class Census:
    """The symmetries of a network. Iterating goes over the exact ones."""

    relations: tuple[Relation, ...]
    """Exact, each proved on its orbit: outputs and loss stay."""
    approximate: tuple[Relation, ...]
    """They hold but for the eps of a norm; `change` says how far, on randomised weights."""
    unclear: tuple[str, ...]
    """What was seen and not understood, or did not hold where it was tried, in sentences."""
    silent: tuple[str, ...]
    """Parameters, or parts of them, that the loss does not depend on."""
    frozen: tuple[str, ...]
    """Parameters that do not train: SGD has no symmetry that would have to move them."""
    free: tuple[str, ...]
    """Trainable parameters that no exact symmetry moves."""
    broken: tuple[Relation, ...] = ()
    """Symmetries of the outputs that the loss breaks, by a penalty on weights for instance: they are none of training.
    `change` is that of the loss."""

    def __iter__(self) -> Iterator[Relation]:
        return iter(self.relations)

    def __len__(self) -> int:
        return len(self.relations)

    def __str__(self) -> str:
        lines = [f"{len(self.relations)} exact symmetries"]
        lines += [f"  {relation}  [outputs change by {relation.change:.0e}]" for relation in self.relations]
        if self.approximate:
            lines.append(f"{len(self.approximate)} approximate ones")
            lines += [f"  {relation}  [outputs change by {relation.change:.0e}]" for relation in self.approximate]
        if self.broken:
            lines.append(f"{len(self.broken)} symmetries of the outputs that the loss breaks")
            lines += [f"  {relation}  [the loss changes by {relation.change:.0e}]" for relation in self.broken]
        for title, names in (
            ("no gradient", self.silent),
            ("frozen", self.frozen),
            ("moved by none", self.free),
            ("unclear", self.unclear),
        ):
            if names:
                lines.append(f"{title}: {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if names[8:] else ""))
        return "\n".join(lines)


def census(model: nn.Module, batch: Any, loss: Loss, *, seed: int = 0) -> Census:
    """The exponential symmetries of a network, each named and proved. The network itself is not touched.

    A relation is proved by moving along its orbit: outputs and loss have to stay, at random weights of several sizes
    and at those of the model, each time with other random numbers for dropout.

    **Arguments:**

    - `model`: any `nn.Module`; what `torch.compile` and data-parallel wrappers hold is looked at.
    - `batch`: a small batch; `loss(model, batch)` returns its loss as a tensor, calling the model it is given.
    - `seed`: of the random weights.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> found = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> for relation in found:
    ...     print(relation)
    rescaling, 7 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]
    """
    model = unwrap(model)
    large = sum(p.numel() for p in model.parameters()) > LARGE
    with undisturbed(model, seed), nullcontext() if large else _alone():
        return _census(model, batch, loss, seed)


@contextmanager
def _alone() -> Generator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_thread():
            yield
    finally:
        torch.set_num_threads(threads)


def _census(model: nn.Module, batch: Any, loss: Loss, seed: int) -> Census:
    twin = model_copy(model, torch.float64)
    names = list(trainable(twin))
    frozen = tuple(name for name, p in model.named_parameters() if not p.requires_grad)
    if not names:
        raise ValueError("`census`: no parameter of the model trains (requires_grad is False everywhere).")
    searched = levels(twin)
    draws = max([2, *(math.ceil(3 * len(level.axes) / level.size) for level in searched)])
    draws = min(draws, MOST_DRAWS)
    double = as_double(batch)
    with Precise():
        randomise(twin, seed)
        stochastic = draws_numbers(twin, loss, double)
        look = lambda loss, eps, seed: Moments(twin, loss, double, searched, eps, draws, seed, stochastic=stochastic)
        exact, loose = look(loss, LARGE_EPS, seed), look(loss, NO_EPS, seed + 1000)
        found = _relations(searched, exact, [])
        more = _relations(searched, loose, found)
        found, more = exact.grown(found), loose.grown(more)
        if loss_beyond_outputs(twin, loss, double, seed):  # the loss may break symmetries of the outputs
            outward = look(projected(loss, seed), LARGE_EPS, seed + 4000)
            found += outward.grown(_relations(searched, outward, [*found, *more]))
        wide, odd = _whole(twin, loss, double, [*found, *more], exact, seed)
        randomise(twin, seed + 2000)
        ideal = Bench(twin, loss, double, seed + 2000)
        broken = {id(relation): ideal.change(relation, seed, LARGE_EPS) for relation in [*more, *wide]}
        nearly = [relation for relation in [*more, *wide] if broken[id(relation)] > HOLDS]
        exactly = [*found, *(relation for relation in [*more, *wide] if broken[id(relation)] <= HOLDS)]
        tried, own = situations(seed + 5000, stochastic), [p.detach() for p in model.parameters()]
        near, refuted = refute(twin, own, loss, double, nearly, tried, NO_EPS)
        randomise(twin, seed + 2000)
        kept, others = refute(twin, own, loss, double, exactly, tried, None)
    small = model_copy(model, torch.float32)
    randomise(small, seed + 2000)
    bench = Bench(small, loss, as_double(batch, torch.float32), seed + 2000)
    heads = attention_heads(model)

    def named(relation: Relation, change: float) -> Relation:
        return name_relation(model, heads, replace(relation, exact=relation not in near, change=change))

    both = [named(relation, bench.change(relation, seed)) for relation in [*kept, *near]]
    refuted = [*others, *refuted]
    unclear = [*exact.unclear, *loose.unclear, *odd]
    unclear += [
        f"{relation}: gradients show it, outputs change by {relation.change:.0e} along its orbit"
        for relation in both
        if relation.exact and relation.change > HOLDS
    ]
    unclear += [
        f"{named(r.relation, r.change)}: outputs change by {r.change:.0e} along its orbit {r.words}"
        for r in refuted
        if not r.by_loss
    ]
    proved = [relation for relation in both if relation.exact and relation.change <= HOLDS]
    moved = {name for relation in proved for name in relation.parameters}
    order = {name: place for place, name in enumerate(names)}
    place = lambda relation: min((order[a.parameter], int(a.index.min())) for a in relation.minus or relation.plus)
    return Census(
        relations=tuple(sorted(proved, key=place)),
        approximate=tuple(sorted((relation for relation in both if not relation.exact), key=place)),
        unclear=tuple(unclear),
        silent=tuple(dict.fromkeys(map(str, exact.silent))),
        frozen=frozen,
        free=tuple(name for name in names if name not in moved),
        broken=tuple(sorted((named(r.relation, r.change) for r in refuted if r.by_loss), key=place)),
    )


def _relations(searched: list[Level], look: Moments, known: list[Relation]) -> list[Relation]:
    """What the null spaces of all levels hold beyond the relations known."""
    found: list[Relation] = []
    for level, moments, quiet in zip(searched, look.moments, look.quiet, strict=True):
        # a moment of zero with a gradient is a symmetry of its own; without a gradient it is nothing
        sizes = np.abs(moments).max(axis=0)
        lone = sizes <= 1e-9 * _bounds(level, look)
        axes = [axis for axis, q, s in zip(level.axes, quiet, lone, strict=True) if not q and not s]
        kept = moments[:, [not q and not s for q, s in zip(quiet, lone, strict=True)]]
        for axis, q, s in zip(level.axes, quiet, lone, strict=True):
            if s and not q and not axis.shift:
                _add(found, known, Relation("", (axis,), (), 1, False, math.inf))
        if len(axes) < 2:
            continue
        if kept.shape[0] < 2 * kept.shape[1]:
            look.unclear.append(f"{level.name}: too many axes for so few indices, not searched")
            continue
        null = integer_null_space(kept)
        look.unclear += _doubts(level.name, null)
        for vector in sparse_basis(null.basis, np.zeros((len(axes), 0))):
            plus = tuple(axis for axis, c in zip(axes, vector, strict=True) if c > 0)
            minus = tuple(axis for axis, c in zip(axes, vector, strict=True) if c < 0)
            _add(found, known, Relation("", plus or minus, minus if plus else (), 1, False, math.inf))
    return found


def _doubts(where: str, null: Found) -> list[str]:
    said = [f"{where}: a relation at {value:.0e}, neither zero nor clear" for value in null.unclear]
    return said + [f"{where}: a relation whose coefficients are not 0, 1, -1" for _ in null.odd]


def _bounds(level: Level, look: Moments) -> np.ndarray:
    """What the moments of a level could be at most."""
    return np.array([look.bounds[axis.parameter] for axis in level.axes])


def _add(found: list[Relation], known: list[Relation], relation: Relation) -> None:
    if not _implied(relation, [*known, *found]):
        found.append(relation)


def _implied(relation: Relation, known: list[Relation]) -> bool:
    """Whether every generator is a sum of generators known: a coarser or a shorter version of them."""
    signed = lambda r: [(axis, 1) for axis in r.plus] + [(axis, -1) for axis in r.minus]
    if not known:
        return False
    for row in {0, relation.size // 2, relation.size - 1}:
        wanted = {(key, axis.shift): sign for axis, sign in signed(relation) for key in axis.keys(row)}
        columns = []
        for other in known:
            rows = {
                int(k)
                for axis, _ in signed(other)
                for mine, _ in signed(relation)
                if (mine.parameter, mine.axis, mine.shift) == (axis.parameter, axis.axis, axis.shift)
                for k in np.flatnonzero(np.isin(axis.index, mine.index[row]).any(axis=1))
            }
            for k in rows:
                columns.append({(key, axis.shift): sign for axis, sign in signed(other) for key in axis.keys(k)})
        keys = {key: place for place, key in enumerate(dict.fromkeys([*wanted, *(k for c in columns for k in c)]))}
        if not columns:
            return False
        matrix = np.zeros((len(keys), len(columns)))
        target = np.zeros(len(keys))
        for place, column in enumerate(columns):
            for key, sign in column.items():
                matrix[keys[key], place] = sign
        for key, sign in wanted.items():
            target[keys[key]] = sign
        best = np.linalg.lstsq(matrix, target, rcond=None)[0]
        if np.abs(matrix @ best - target).max() > 1e-6:
            return False
    return True


@torch.no_grad()
def _whole(
    twin: nn.Module, loss: Loss, batch: Any, known: list[Relation], look: Moments, seed: int
) -> tuple[list[Relation], list[str]]:
    """Relations between whole parameters, one scale for each, beyond those known: the scale of a residual stream, say.

    Along them all outputs stay, so differences of outputs have as many rows as needed. Known relations are used to
    leave parameters out first. Draws of dropout in which a parameter plays no part say nothing of it: as many are used
    as are needed for all parameters.
    """
    params = trainable(twin)
    quiet = {(axis.parameter, axis.axis, k) for axis in look.silent for k in axis.index.reshape(-1).tolist()}
    scales = [a for a in atoms(twin) if not all((a.parameter, a.axis, k) in quiet for k in a.index[0].tolist())]
    place = {(a.parameter, a.shift, k): n for n, a in enumerate(scales) for k in a.index[0].tolist()}
    implied = np.zeros((len(scales), len(known)))
    for column, relation in enumerate(known):
        for side, sign in ((relation.plus, 1), (relation.minus, -1)):
            for axis in side:
                mine = [n for n, a in enumerate(scales) if a.parameter == axis.parameter and a.shift == axis.shift]
                same = [n for n in mine if scales[n].axis == axis.axis]
                hit = {place[axis.parameter, axis.shift, int(k)] for k in axis.index.reshape(-1)
                       if (axis.parameter, axis.shift, int(k)) in place} if same else set(mine)  # fmt: skip
                for n in hit:
                    implied[n, column] += sign
    implied = implied[:, np.any(implied != 0, axis=0)]
    left_out = _pivots(implied)
    tried = [n for n in range(len(scales)) if n not in left_out]
    if not tried:
        return [], []
    parts, sizes = [], []
    with epsilon(twin, NO_EPS):
        randomise(twin, seed + 3000)
        for draw in look.covering():
            outputs = forward(twin, loss, batch, draw)[1]
            count = min(outputs.numel(), 4 * len(tried) + 64)
            chosen = torch.randperm(outputs.numel(), generator=torch.Generator().manual_seed(draw))[:count]
            columns = []
            for n in tried:
                axis = scales[n]
                parameter = params[axis.parameter]
                kept = parameter.detach().clone()
                one = Relation("", (axis,), (), 1, False, math.inf)
                factor = torch.tensor([math.exp(STEP)], dtype=torch.float64)
                parameter.copy_(move({axis.parameter: kept}, one, factor)[axis.parameter])
                moved = forward(twin, loss, batch, draw)[1]
                parameter.copy_(kept)
                columns.append(((moved - outputs)[chosen] / STEP).numpy(force=True))
            parts.append(np.stack(columns, axis=1))
            sizes.append(float(outputs.norm()) / outputs.numel() ** 0.5)
    matrix, size = np.concatenate(parts), max(sizes)
    lone = np.abs(matrix).max(axis=0) <= NULL * size
    null = integer_null_space(np.where(lone[None], 0.0, matrix))
    basis = np.zeros((len(scales), null.basis.shape[1]))
    basis[tried] = null.basis
    found = []
    for vector in sparse_basis(basis, implied):
        plus, minus = (tuple(a for a, c in zip(scales, vector, strict=True) if c == sign) for sign in (1, -1))
        found.append(Relation("", plus or minus, minus if plus else (), 1, False, math.inf))
    changes = zip(tried, np.abs(matrix).max(axis=0) / size, strict=True)
    faint = [
        f"whole parameters: outputs change by {s:.0e} of a scale of {scales[n]}" for n, s in changes if NULL < s < CLEAR
    ]
    return found, _doubts("whole parameters", null) + faint


def _pivots(matrix: np.ndarray) -> set[int]:
    """Rows that the columns of a matrix determine: as many as its rank."""
    work, chosen = matrix.copy(), set()
    for column in range(work.shape[1]):
        row = int(np.argmax(np.abs(work[:, column])))
        if abs(work[row, column]) < 1e-9:
            continue
        chosen.add(row)
        pivot = work[:, column] / work[row, column]
        for other in range(column + 1, work.shape[1]):
            work[:, other] -= work[row, other] * pivot
    return chosen


def refuse_foreign(function: str, census: Census, params: dict[str, Tensor]) -> None:
    """A census is of one model as it trained then: refuses one that moves what these trainable parameters have not."""
    for relation in census.relations:
        for axis in relation.axes:
            parameter = params.get(axis.parameter)
            shape = None if parameter is None else tuple(parameter.shape) or (1,)
            if shape is None or shape[axis.axis] != axis.length:
                raise ValueError(
                    f"`{function}`: the census moves {axis}, which this model does not have as a trainable parameter; "
                    "take a census of this model as it trains now."
                )

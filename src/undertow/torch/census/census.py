"""The census of a network: its exponential symmetries, found from gradients at random weights and proved.

For every axis of every parameter the moment m_i = sum G W over the other axes (G the gradient) is the derivative of the
loss with respect to the logarithm of a scale of index i. Symmetries are the linear relations between moments that hold
at every draw of weights, a null space. Whether a block of indices allows a GL(d) beyond scales follows from the
matrices G W'.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from undertow._calls import checked_call
from undertow._table import ResultTable, html_of
from undertow._validate import flag
from undertow.torch._copies import (
    Batch,
    Loss,
    cast_batch,
    randomise,
    trainable,
    unwrap,
)
from undertow.torch._inputs import check_inputs
from undertow.torch._isolation import isolated
from undertow.torch._renamed import Renamed
from undertow.torch._threads import single_threaded
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.candidates import attention_heads
from undertow.torch.census.folding import fold_names, folded_table
from undertow.torch.census.names import name_symmetry, names_of_axes
from undertow.torch.census.pipeline import search
from undertow.torch.census.proof import (
    OUTPUT_RTOL,
    OrbitTrial,
)
from undertow.torch.census.scaling.check import ScalingCheck, check_scaling
from undertow.torch.census.scaling.entries import ScalingMap
from undertow.torch.census.scaling.writing import scaling_map
from undertow.torch.census.stored import encode, json_text, load_record, save_record
from undertow.torch.census.structure import Structure, structure_of
from undertow.torch.census.transfer import transferred
from undertow.torch.census.unexplained import Unexplained

__all__ = ["Census", "census", "check_census"]

ONE_THREAD_LIMIT = 3 * 10**8
"""Number of parameters up to which the census runs on one thread. It makes some forty passes over a few tokens: several
threads gain little on so many small operations, and where another program occupies a core they wait for each other at
every one of them (100 million parameters: 31 s of CPU time with two threads, 23 with one)."""

MOST_LINES = 24
"""Number of symmetries up to which `print` shows one line for each; above it shows the table."""


@dataclass(frozen=True, repr=False)
class Census:
    """The symmetries of a network. Iteration goes over the exact ones.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> found = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> print(len(found), [symmetry.kind for symmetry in found], found.free)
    1 ['rescaling'] ('2.bias',)
    """

    symmetries: tuple[Symmetry, ...]
    """Exact symmetries, each proved on its orbit: outputs and loss do not change."""
    approximate: tuple[Symmetry, ...]
    """Symmetries up to the eps of a norm; `change` is the change of the outputs at random weights."""
    unclear: tuple[str, ...]
    """Candidates that could not be interpreted, or that failed in a situation, in sentences."""
    without_gradient: tuple[str, ...]
    """Parameters, or parts of them, that the loss does not depend on."""
    frozen: tuple[str, ...]
    """Parameters that do not train. Symmetries that would move them are not symmetries of training."""
    free: tuple[str, ...]
    """Trainable parameters that no exact symmetry moves."""
    unexplained: tuple[Unexplained, ...] = ()
    """Charges in the null space over all indices that no named symmetry explains. Empty only if there are none; where
    they could not be counted, an entry gives the reason."""
    broken: tuple[Symmetry, ...] = ()
    """Symmetries of the outputs that the loss breaks, by a penalty on weights for instance; training does not have
    them. `change` is the change of the loss."""

    structure: Structure | None = None
    """Shapes and sizes of the network, by which `transfer` finds its parameters in a larger one."""

    relations = Renamed("symmetries")
    silent = Renamed("without_gradient")

    def __iter__(self) -> Iterator[Symmetry]:
        return iter(self.symmetries)

    def __len__(self) -> int:
        return len(self.symmetries)

    def check_scaling(
        self,
        source: str,
        readers: str | Sequence[str],
        *,
        model: nn.Module | None = None,
        batch: Batch = None,
        loss: Loss | None = None,
        seed: int = 0,
    ) -> ScalingCheck:
        """Return whether a layer may be scaled against its readers; see `undertow.torch.check_scaling`."""
        return check_scaling(self, source, readers, model=model, batch=batch, loss=loss, seed=seed)

    def scaling_map(self) -> ScalingMap:
        """Return the layers that may be scaled against their readers, as patterns for quantisation tools."""
        return scaling_map(self)

    def __repr__(self) -> str:
        return f"Census({self._summary()})"

    def _summary(self) -> str:
        charges = sum(symmetry.generators for symmetry in self.symmetries)
        counts = f"{_number_of(self.symmetries)}, {charges:,} charges, {len(self.approximate)} approximate"
        unexplained = sum(part.count for part in self.unexplained)
        counts += f", {unexplained} unexplained"
        return counts + (f", {len(self.broken)} broken by the loss" if self.broken else "")

    def _repr_html_(self) -> str:
        return html_of([self.table()])

    def table(self) -> ResultTable:
        """Return a table with one row for the same symmetry in every layer. `print` shows it.

        >>> import torch
        >>> from undertow.torch import census
        >>> layers = [torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4)) for _ in "ab"]
        >>> net = torch.nn.Sequential(*layers, torch.nn.Tanh())
        >>> symmetries = census(net, torch.randn(6, 4), lambda model, x: model(x).square().mean())
        >>> print(symmetries.table().rows[0][:5])
        ('*', 'rescaling', '6 scales', 'x 2 layers', '12')
        """
        groups = (("", self.symmetries), ("up to eps", self.approximate), ("broken by the loss", self.broken))
        return folded_table(self._summary(), groups, self._names(fold_names))

    def to_json(self) -> str:
        """Return the census as JSON, as `save` writes it."""
        return json_text(encode(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the census to a file, as plain JSON; `Census.load` reads it."""
        save_record(path, encode(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Census":
        """Return the census of a file that `save` wrote.

        >>> import tempfile, torch
        >>> from undertow.torch import Census, census
        >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
        >>> symmetries = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     symmetries.save(f"{folder}/census.json")
        ...     Census.load(f"{folder}/census.json")
        Census(1 symmetry, 7 charges, 0 approximate, 0 unexplained)
        """
        return load_record(path, cls)

    def transfer(self, model: nn.Module, batch: Batch, loss: Loss, *, seed: int = 0) -> "Census":
        """Return this census as that of a wider and deeper network of the same structure, proved there.

        Parameters correspond by name, layers by their modules and settings. All symmetries are moved at once on the
        model itself, in its own precision: outputs and loss may change as by rounding alone. The weights are restored.

        **Arguments:**

        - `model`: a network with the same modules as the one of this census, with other sizes and numbers of layers.
        - `batch`, `loss`: as in `census`, for this model.
        - `seed`: seed of the random moves along the orbits.

        A `ValueError` names the parameter, layer or size that has no counterpart, or the symmetries that do not hold.

        >>> import torch
        >>> from undertow.torch import census
        >>> from torch.nn import Linear, ReLU, Sequential
        >>> net = lambda width: Sequential(Linear(5, width), ReLU(), Linear(width, 3))
        >>> loss = lambda model, x: model(x).square().mean()
        >>> narrow = census(net(7), torch.randn(6, 5), loss)
        >>> print(narrow.transfer(net(1000), torch.randn(6, 5), loss).symmetries[0])
        rescaling, 1000 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]
        """
        return transferred(self, unwrap(model), batch, loss, seed)

    def __str__(self) -> str:
        if len(self.symmetries) > MOST_LINES:
            return self.table().text()
        lines = [_number_of(self.symmetries, "exact ")]
        lines += [f"  {symmetry}  [outputs change by {symmetry.change:.0e}]" for symmetry in self.symmetries]
        if self.approximate:
            lines.append(_number_of(self.approximate, "approximate "))
            lines += [f"  {symmetry}  [outputs change by {symmetry.change:.0e}]" for symmetry in self.approximate]
        if self.broken:
            lines.append(f"{_number_of(self.broken)} of the outputs that the loss breaks")
            lines += [f"  {symmetry}  [the loss changes by {symmetry.change:.0e}]" for symmetry in self.broken]
        return "\n".join([*lines, *self._names()])

    def _names(self, shorten: Callable[[Sequence[str]], Sequence[str]] = tuple) -> list[str]:
        """Return lines with the parameters that have no symmetry and with what is unclear, the first 8 of each."""
        titled = (
            ("no gradient", self.without_gradient),
            ("frozen", self.frozen),
            ("moved by no symmetry", self.free),
            ("unclear", self.unclear),
        )
        rest = lambda names: f" and {len(names) - 8} more" if names[8:] else ""
        short = [(title, shorten(names)) for title, names in titled]
        lines = [f"{title}: {', '.join(names[:8])}{rest(names)}" for title, names in short if names]
        return lines + [f"unexplained: {one}" for one in self.unexplained]


@checked_call("census")
def census(model: nn.Module, batch: Batch, loss: Loss, *, seed: int = 0, count: bool | None = None) -> Census:
    """Return the exponential symmetries of a network, each named and proved. The network itself is not changed.

    A symmetry is proved by moving along its orbit. Outputs and loss must not change, at random weights of several
    sizes and at the weights of the model, each time with other random numbers for dropout.

    **Arguments:**

    - `model`: any `nn.Module`, also inside `torch.compile` or a data-parallel wrapper.
    - `batch`: a small batch. `loss(model, batch)` must call the model it is given and return a scalar tensor.
    - `seed`: seed of the random weights.
    - `count`: whether to compute the null space over all indices of all axes. It gives symmetries between indices that
      the search by layers does not put side by side, and counts the charges that no named symmetry explains. It takes
      about as many gradients of outputs as all axes have indices; by default it is done up to 600 indices.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> for symmetry in census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean()):
    ...     print(symmetry)
    rescaling, 7 scales: 0.weight[i, :], 0.bias against 2.weight[:, i]
    """
    seed, model = check_inputs("census", model, batch, loss, seed), unwrap(model)
    count = None if count is None else flag("census", "count", count)
    large = sum(p.numel() for p in model.parameters()) > ONE_THREAD_LIMIT
    with isolated(model, seed), nullcontext() if large else single_threaded():
        return replace(_census(model, batch, loss, seed, count), structure=structure_of(model))


def _census(model: nn.Module, batch: Batch, loss: Loss, seed: int, count: bool | None) -> Census:
    names = list(trainable(model))
    if not names:
        raise ValueError("`census`: no parameter of the model trains (requires_grad is False everywhere).")
    searched, small = search(model, batch, loss, seed, count)
    randomise(small, seed + 2000)
    trial = OrbitTrial(small, cast_batch(batch, torch.float32), loss, seed + 2000)
    heads = attention_heads(model)

    def named(symmetry: Symmetry, change: float) -> Symmetry:
        exact = symmetry not in searched.approximate
        return name_symmetry(model, heads, replace(symmetry, exact=exact, change=change))

    changes = [*trial.changes(searched.exact, seed), *_changes_by_layer(trial, searched.approximate, seed)]
    both = [named(s, change) for s, change in zip([*searched.exact, *searched.approximate], changes, strict=True)]
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
        unexplained=searched.unexplained,
        without_gradient=names_of_axes(searched.zero_axes),
        frozen=tuple(name for name, p in model.named_parameters() if not p.requires_grad),
        free=tuple(name for name in names if name not in moved),
        broken=tuple(sorted((named(r.symmetry, r.change) for r in searched.refuted if r.by_loss), key=place)),
    )


def _number_of(symmetries: Sequence[Symmetry], kind: str = "") -> str:
    return f"{len(symmetries)} {kind}symmetr{'y' if len(symmetries) == 1 else 'ies'}"


def _changes_by_layer(trial: OrbitTrial, symmetries: Sequence[Symmetry], seed: int) -> list[float]:
    """Return the change of the outputs along each symmetry; those of repeated layers move together."""
    layer = lambda symmetry: (symmetry.size, *(re.sub(r"\d+", "*", name) for name in symmetry.parameters))
    groups: dict[tuple, list[Symmetry]] = {}
    for symmetry in symmetries:
        groups.setdefault(layer(symmetry), []).append(symmetry)
    changes = {key: trial.joint_change(group, seed) for key, group in groups.items()}
    return [changes[layer(symmetry)] for symmetry in symmetries]


def check_census(function: str, census: Census, params: dict[str, Tensor]) -> None:
    """Raise a `ValueError` if the census moves something that these trainable parameters do not have."""
    for symmetry in census.symmetries:
        for axis in symmetry.axes:
            parameter = params.get(axis.parameter)
            shape = None if parameter is None else tuple(parameter.shape) or (1,)
            if shape is None or shape[axis.axis] * (axis.matrices if axis.by_matrix else 1) != axis.length:
                raise ValueError(
                    f"`{function}`: the census moves {axis}, which this model does not have as a trainable parameter; "
                    "take a census of this model as it trains now."
                )

"""Carry the census of a narrow network to a wide one with the same structure, and prove it there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from undertow.torch._copies import Batch, Loss, trainable
from undertow.torch.census.axes import Symmetry
from undertow.torch.census.layers import LayerMap, LayersError, Names
from undertow.torch.census.rounding import Failure, prove
from undertow.torch.census.search import NO_EPS
from undertow.torch.census.sizes import Atom, SizeMap
from undertow.torch.census.structure import Structure, structure_of
from undertow.torch.census.widening import WideningError, widen

if TYPE_CHECKING:
    from undertow.torch.census.census import Census

__all__ = ["carried", "transferred"]

CALL = "`census(twin, ...).transfer(model, batch, loss)`"


def _carried(structure: Structure | None, symmetries: Sequence[Symmetry], model: nn.Module) -> list[Symmetry]:
    """Return the symmetries of a network of this structure as those of a wider and deeper one."""
    if structure is None:
        raise ValueError(f"{CALL}: this census has no structure of its network; take the census again.")
    layers = LayerMap(structure, structure_of(model))
    widened: list[Symmetry] = []
    cache: dict[tuple[object, ...], Symmetry] = {}
    try:
        layers.check_names()
        atoms = _Atoms(structure, layers.deep)
        for symmetry in symmetries:
            for pairs in layers.instances(symmetry, symmetries):
                widened.append(_widened(symmetry, pairs, atoms, cache))
    except (LayersError, WideningError) as error:
        raise ValueError(
            f"{CALL}: {error}. Take the census of a network with the structure of the model and different numbers for "
            "different sizes, such as `undertow.torch.narrow_twin(model.config)`."
        ) from None
    order = {name: place for place, name in enumerate(trainable(model))}
    place = lambda symmetry: min((order[a.parameter], int(a.index.min())) for a in symmetry.minus or symmetry.plus)
    return sorted((s for s in widened if all(name in order for name in s.parameters)), key=place)


def _widened(symmetry: Symmetry, pairs: Names, atoms: "_Atoms", cache: dict[tuple[object, ...], Symmetry]) -> Symmetry:
    """Return one symmetry of the wide network. In a deep network it is the same in all layers but for the names."""
    places: dict[str, list[str]] = {}
    for shallow, deep in pairs:
        places.setdefault(shallow, []).append(deep)
    spread = lambda side: tuple(replace(axis, parameter=deep) for axis in side for deep in places[axis.parameter])
    placed = replace(symmetry, plus=spread(symmetry.plus), minus=spread(symmetry.minus))
    shapes = {name: atoms.wide_shapes[name] for name in placed.parameters}
    sizes = atoms.around(pairs)
    key = (id(symmetry), sizes, tuple(shapes.values()))
    if key not in cache:
        cache[key] = widen(placed, shapes, sizes)
    axes = [replace(axis, parameter=own.parameter) for axis, own in zip(cache[key].axes, placed.axes, strict=True)]
    count = len(placed.plus)
    return replace(cache[key], plus=tuple(axes[:count]), minus=tuple(axes[count:]))


class _Atoms:
    """The sizes that have a name in both networks."""

    def __init__(self, narrow: Structure, wide: Structure):
        self.wide_shapes, self._narrow_shapes = dict(wide.shapes), dict(narrow.shapes)
        self._modules = [{m.module: dict(m.sizes) for m in s.modules} for s in (narrow, wide)]
        fields = dict(wide.configuration)
        self._fields = {Atom(n, fields[key], 2) for key, n in narrow.configuration if key in fields}

    def around(self, pairs: Names) -> SizeMap:
        """Return the sizes near these parameters: their axes, attributes of the modules around them, the fields."""
        atoms = set(self._fields)
        for shallow, deep in pairs:
            shapes = self._narrow_shapes[shallow], self.wide_shapes[deep]
            atoms |= {Atom(n, w, 0) for n, w in zip(*shapes, strict=False) if n > 1}
            above = zip(_modules_above(shallow), _modules_above(deep), strict=True)
            for one, two in above:
                own, other = self._modules[0].get(one, {}), self._modules[1].get(two, {})
                atoms |= {Atom(n, other[key], 1) for key, n in own.items() if key in other}
        cheapest: dict[tuple[int, int], Atom] = {}
        for atom in sorted(atoms, key=lambda atom: -atom.cost):
            cheapest[atom[:2]] = atom
        return SizeMap(tuple(sorted(cheapest.values())))


def _modules_above(name: str) -> list[str]:
    """Return the modules that hold a parameter, from the outermost, without the network itself."""
    parts = name.split(".")
    return [".".join(parts[:level]) for level in range(1, len(parts))]


def carried(census: "Census", model: nn.Module) -> "Census":
    """Return a census as that of a wider and deeper network of the same structure, not proved there.

    The weights of the model are not used; they may be on the meta device.
    """
    groups = [
        _carried(census.structure, symmetries, model)
        for symmetries in (census.symmetries, census.approximate, census.broken)
    ]
    moved = {name for symmetry in groups[0] for name in symmetry.parameters}
    noted = lambda texts: tuple(f"in the narrow network: {text}" for text in texts)
    return replace(
        census,
        **dict(zip(("symmetries", "approximate", "broken"), map(tuple, groups), strict=True)),
        unclear=noted(census.unclear),
        without_gradient=noted(census.without_gradient),
        frozen=tuple(name for name, p in model.named_parameters() if not p.requires_grad),
        free=tuple(name for name in trainable(model) if name not in moved),
        structure=structure_of(model),
    )


def transferred(census: "Census", model: nn.Module, batch: Batch, loss: Loss, seed: int) -> "Census":
    """Return a census carried to another network, with the change measured there; see `Census.transfer`."""
    wide = carried(census, model)
    # only without the eps of norms do the approximate symmetries hold; the loss may break the last ones
    tests = (("symmetries", None, True), ("approximate", NO_EPS, True), ("broken", None, False))
    results = {}
    for field, eps, by_loss in tests:
        symmetries: tuple[Symmetry, ...] = getattr(wide, field)
        if symmetries:
            verdict = prove(model, batch, loss, symmetries, eps=eps, by_loss=by_loss, seed=seed)
            if verdict.failures:
                raise ValueError(_refusal(verdict.failures, len(symmetries)))
            results[field] = tuple(replace(symmetry, change=verdict.change) for symmetry in symmetries)
    return replace(wide, **results)


def _refusal(failures: Sequence[Failure], count: int) -> str:
    """Return the sentence that names symmetries that do not hold."""
    named = "; ".join(
        f"{failure.symmetry} changes by {failure.change:.0e}, rounding by {failure.rounding:.0e}"
        for failure in failures[:3]
    )
    more = f"; and {len(failures) - 3} more" if failures[3:] else ""
    return (
        f"{CALL}: {len(failures)} of {count} symmetries of the narrow network do not hold in this model ({named}"
        f"{more}). The model computes something else: take the census of a twin of this model."
    )

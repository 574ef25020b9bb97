"""The verdict of a census on a scaling map: the symmetry that contains it, or what is wrong with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.scaling.layers import LayerMatch, folded, layer_of
from undertow.torch.census.scaling.moves import OUTPUT_RTOL, MeasuredChange

__all__ = [
    "PROOF",
    "AbstractCensus",
    "ScaledLayer",
    "ScalingIndex",
    "census_layers",
    "census_verdict",
    "layers_of",
    "scaling_symmetries",
    "with_measurement",
]

PROOF = "a symmetry of the census contains it"
UNUSED = "the batch does not use this layer"
Verdict = Literal["preserves", "changes", "unproved"]


@runtime_checkable
class AbstractCensus(Protocol):
    """The part of a census that is read here. `Census` has methods that call this package, which cannot import it."""

    @property
    def symmetries(self) -> tuple[Symmetry, ...]: ...
    @property
    def approximate(self) -> tuple[Symmetry, ...]: ...
    @property
    def broken(self) -> tuple[Symmetry, ...]: ...
    @property
    def without_gradient(self) -> tuple[str, ...]: ...
    @property
    def frozen(self) -> tuple[str, ...]: ...
    @property
    def free(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class ScaledLayer:
    """The verdict on one source layer that is scaled against its readers.

    >>> import torch
    >>> from undertow.torch import census, check_scaling
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> found = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> for layer in check_scaling(found, "0", "2"):
    ...     print(layer.source, layer.readers, layer.verdict, "|", layer.reason)
    0 ('2',) preserves | a symmetry of the census contains it (rescaling)
    """

    source: str
    readers: tuple[str, ...]
    verdict: Verdict
    """"preserves" or "changes" the function; "unproved" if neither the census nor the batch decides."""
    reason: str
    """The proof, or what is wrong, as a sentence."""
    missing: tuple[str, ...] = ()
    """Layers that read the source too and must be scaled with the readers."""
    extra: tuple[str, ...] = ()
    """Readers that do not read the source."""
    instead: tuple[str, ...] = ()
    """Layers against which the readers can be scaled instead of the source."""
    change: float | None = None
    """Relative change of the outputs at random weights; None without a model."""
    own_change: float | None = None
    """Relative change of the outputs at the weights of the model; None without a model."""


def census_layers(census: AbstractCensus) -> list[str]:
    """Return the names of the layers of a census: those that move, that are free and that are frozen."""
    every = [*census.symmetries, *census.approximate, *census.broken]
    names = [*(name for symmetry in every for name in symmetry.parameters), *census.free, *census.frozen]
    return list(dict.fromkeys(map(layer_of, names)))


def layers_of(axes: Iterable[Axis]) -> tuple[str, ...]:
    """Return the layers of some axes, each once."""
    return tuple(dict.fromkeys(layer_of(axis.parameter) for axis in axes))


def scaling_symmetries(census: AbstractCensus) -> list[Symmetry]:
    """Return the exact symmetries that scale outputs of layers (minus) against inputs of layers that read them."""
    return [
        symmetry
        for symmetry in census.symmetries
        if symmetry.minus
        and {axis.role for axis in symmetry.plus} == {"in"}
        and {axis.role for axis in symmetry.minus} <= {"out", "bias", "gain"}
    ]


class ScalingIndex:
    """The scaling symmetries of a census by their sources and by their readers."""

    def __init__(self, census: AbstractCensus):
        self.census = census
        self.by_source: dict[str, list[Symmetry]] = {}
        self.by_reader: dict[str, list[Symmetry]] = {}
        for symmetry in scaling_symmetries(census):
            for side, places in ((symmetry.minus, self.by_source), (symmetry.plus, self.by_reader)):
                for layer in layers_of(side):
                    places.setdefault(layer, []).append(symmetry)
        self.free: dict[str, list[str]] = {}
        for name in census.free:
            self.free.setdefault(layer_of(name), []).append(name)

    def sources_of(self, readers: Iterable[str]) -> tuple[str, ...]:
        """Return the layers against which some of the readers can be scaled."""
        symmetries = (symmetry for reader in readers for symmetry in self.by_reader.get(reader, ()))
        return tuple(dict.fromkeys(name for symmetry in symmetries for name in layers_of(symmetry.minus)))


def census_verdict(index: ScalingIndex, match: LayerMatch) -> ScaledLayer:
    """Return the verdict of the census alone on a source layer that is scaled against its readers."""
    own = index.by_source.get(match.source, [])
    read = layers_of(axis for symmetry in own for axis in symmetry.plus)
    instead = () if set(match.readers) & set(read) else index.sources_of(match.readers)
    layer = ScaledLayer(match.source, match.readers, "changes", "")
    if instead:
        reason = f"the readers can be scaled against {', '.join(instead)} and not against {match.source}"
        return replace(layer, instead=instead, reason=reason)
    if not own:
        return replace(layer, verdict="unproved", reason=_unproved_reason(index.census, match.source))
    asked, known = set(match.readers), set(read)
    layer = replace(
        layer,
        missing=tuple(name for name in read if name not in asked),
        extra=tuple(name for name in match.readers if name not in known),
    )
    wrong = _list_reason(layer) if layer.missing or layer.extra else _index_reason(index, match.source, own)
    if wrong:
        return replace(layer, reason=wrong)
    return replace(layer, verdict="preserves", reason=_proof(own))


def _list_reason(layer: ScaledLayer) -> str:
    parts = []
    if layer.missing:
        parts.append(f"{_verb(layer.missing, 'reads', 'read')} {layer.source} too")
    if layer.extra:
        parts.append(f"{_verb(layer.extra, 'does', 'do')} not read {layer.source}")
    return ", and ".join(parts)


def _verb(names: tuple[str, ...], one: str, several: str) -> str:
    shown = names if len(names) <= 4 else tuple(dict.fromkeys(map(folded, names)))  # experts are many
    return f"{', '.join(shown)} {one if len(names) == 1 else several}"


def _unproved_reason(census: AbstractCensus, source: str) -> str:
    if source in map(layer_of, census.frozen):
        return f"{source} is frozen, and the census has no symmetries of frozen parameters"
    if any(source in layers_of(symmetry.minus) for symmetry in census.approximate):
        return f"the census has a symmetry of {source} up to the eps of a norm only"
    return f"no symmetry of the census scales the outputs of {source} against layers that read them"


def _index_reason(index: ScalingIndex, source: str, own: Sequence[Symmetry]) -> str:
    """Return why scales of all channels of a source are not allowed, or an empty text."""
    written = [axis for symmetry in own for axis in symmetry.minus if layer_of(axis.parameter) == source]
    moved = {axis.parameter for axis in written}
    names = [name for name in index.free.get(source, ()) if name not in moved]
    still = [name for name in names if not any(part.startswith(name) for part in index.census.without_gradient)]
    if still:
        return f"{', '.join(still)} must not be divided by the scales"
    weights = [axis for axis in written if axis.role != "bias" and axis.dimensions <= 2]
    together = max((axis.index.shape[1] for axis in weights), default=1)
    if together > 1:
        return f"the scales of {source} must be equal in groups of {together} channels"
    rows = np.sort(np.concatenate([axis.index[:, 0] for axis in weights])) if weights else np.arange(0)
    if weights and not np.array_equal(rows, np.arange(weights[0].length - len(rows), weights[0].length)):
        return f"only {len(rows)} of the {weights[0].length} channels of {source} can be scaled, and not the last ones"
    for symmetry in own:
        for axis in symmetry.plus:
            if axis.dimensions <= 2 and axis.index.shape[1] == 1 and not _aligned(symmetry, source, axis):
                return f"{layer_of(axis.parameter)} reads the channels of {source} in another order"
    return ""


def _aligned(symmetry: Symmetry, source: str, read: Axis) -> bool:
    """Return whether column k of a reader reads channel k of the source, counted from the first that moves."""
    written = [a for a in symmetry.minus if layer_of(a.parameter) == source and a.role != "bias" and a.dimensions <= 2]
    order = lambda axis: axis.index[:, 0] - axis.index.min()
    return all(np.array_equal(order(axis), order(read)) for axis in written)


def _proof(own: Sequence[Symmetry]) -> str:
    kinds = ", ".join(dict.fromkeys(symmetry.kind for symmetry in own))
    repeats = max(axis.index.shape[1] for symmetry in own for axis in symmetry.plus)
    note = f"; each scale acts on {repeats} inputs of the readers" if repeats > 1 else ""
    return f"{PROOF} ({kinds}){note}"


def with_measurement(layer: ScaledLayer, measured: MeasuredChange, ties: dict[str, str]) -> ScaledLayer:
    """Return the verdict with the measured change of the outputs, which decides.

    `ties` has the other name of each weight that two layers share.
    """
    if measured.problem:
        return replace(layer, verdict="changes", reason=measured.problem)
    if not measured.used:
        return layer if layer.verdict == "preserves" else replace(layer, verdict="unproved", reason=UNUSED)
    layer = replace(layer, change=measured.random, own_change=measured.own)
    if measured.random <= OUTPUT_RTOL and not measured.own > OUTPUT_RTOL:
        if layer.verdict == "preserves":
            return layer
        proof = "outputs do not change in double precision for random scales of all channels"
        return replace(layer, verdict="preserves", reason=proof, missing=(), extra=(), instead=())
    tied = [f"{name} shares its weight with {ties[name]}" for name in (layer.source, *layer.readers) if name in ties]
    if tied:
        return replace(layer, verdict="changes", reason=", and ".join(tied))
    if layer.verdict == "preserves":
        return replace(
            layer, verdict="changes", reason="the census has this symmetry, but outputs of this model change"
        )
    if not (layer.missing or layer.extra or layer.instead):
        read = tuple(name for name in measured.readers if not _has_reader(name, layer.readers))
        layer = replace(layer, missing=read)
        layer = replace(layer, reason=_list_reason(layer)) if read else layer
    return replace(layer, verdict="changes")


def _has_reader(module: str, readers: tuple[str, ...]) -> bool:
    """Return whether a module, or a parameter that it holds, is one of the readers."""
    return any(reader == module or reader.startswith(f"{module}.") for reader in readers)

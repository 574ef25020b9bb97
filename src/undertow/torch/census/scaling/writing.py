"""The scaling map of a census: every layer that can be scaled against its readers, with layers of one kind folded."""

import re
from collections.abc import Mapping, Sequence

from undertow.torch.census.axes import Symmetry
from undertow.torch.census.scaling.entries import ScalingEntry, ScalingMap
from undertow.torch.census.scaling.layers import LayerMatch, folded, layer_of, match_layers, pair_layers
from undertow.torch.census.scaling.verdict import (
    AbstractCensus,
    ScalingIndex,
    census_layers,
    census_verdict,
    layers_of,
)

__all__ = ["scaling_map"]


def scaling_map(census: AbstractCensus) -> ScalingMap:
    """Return all entries that preserve the function, with one pattern for the same layer of all blocks.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> print(census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean()).scaling_map())
    0 against 2
    """
    index = ScalingIndex(census)
    groups: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
    notes: dict[tuple[str, ...], str] = {}
    for source, symmetries in index.by_source.items():
        readers = layers_of(axis for symmetry in symmetries for axis in symmetry.plus)
        if census_verdict(index, LayerMatch(source, readers)).verdict == "preserves":
            note = _note(source, symmetries)
            kind = (note, folded(source), *dict.fromkeys(map(folded, readers)))
            groups.setdefault(kind, {})[source] = readers
            notes[kind] = note
    names = census_layers(census)
    entries = []
    for kind, members in groups.items():
        entry = _folded_entry(members, kind[2:], names, notes[kind])
        whole = _resolved(entry, names) == {(source, frozenset(readers)) for source, readers in members.items()}
        entries += [entry] if whole else [ScalingEntry(*member, notes[kind]) for member in members.items()]
    return ScalingMap(tuple(entries))


def _folded_entry(
    members: Mapping[str, tuple[str, ...]], templates: Sequence[str], names: Sequence[str], note: str
) -> ScalingEntry:
    """Return one entry for sources that differ in numbers, with their readers."""
    below = {name for readers in members.values() for name in readers}
    patterns = (_pattern([name for name in below if folded(name) == template], names) for template in templates)
    return ScalingEntry(_pattern(list(members), names), tuple(patterns), note)


def _resolved(entry: ScalingEntry, names: Sequence[str]) -> set[tuple[str, frozenset[str]]]:
    """Return the sources that an entry selects, each with its readers."""
    matches = pair_layers(match_layers(entry.source, names), [match_layers(reader, names) for reader in entry.readers])
    return {(match.source, frozenset(match.readers)) for match in matches}


def _note(source: str, symmetries: Sequence[Symmetry]) -> str:
    """Return a remark where scales and channels are not one to one."""
    written = [
        axis for s in symmetries for axis in s.minus if layer_of(axis.parameter) == source and axis.role == "out"
    ]
    repeats = max(axis.index.shape[1] for s in symmetries for axis in s.plus)
    remarks = []
    count = sum(axis.size for axis in written)
    if written and written[0].dimensions <= 2 and count < written[0].length:
        remarks.append(f"the last {count} of {written[0].length} channels")
    if repeats > 1:
        remarks.append(f"each scale acts on {repeats} inputs of the readers")
    return "; ".join(remarks)


def _pattern(names: Sequence[str], all_names: Sequence[str]) -> str:
    """Return a pattern that selects these layers, which differ in numbers, and no other layer.

    A number is any number where that selects no other layer, else one of those that occur.
    """
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    places = [k for k, part in enumerate(parts[0]) if part.isdigit()]
    every = len(names) == sum(folded(name) == folded(names[0]) for name in all_names)
    pieces = [re.escape(part) for part in parts[0]]
    for k in places:
        values = sorted({int(part[k]) for part in parts})
        listed = f"({'|'.join(map(str, values))})" if len(values) > 1 else str(values[0])
        pieces[k] = r"\d+" if every and len(values) > 1 else listed
    path = r"\.".join(pieces)
    return f"re:{path}$"

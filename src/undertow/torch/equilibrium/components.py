"""Symmetries that share parameters, as components that can be solved one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import nn

from undertow.torch.census.axes import Symmetry

__all__ = ["Component", "components", "memory_groups"]

MEMORY = 2**30
"""Bytes of gradients held at once; more parameters take another pass over the batches."""


@dataclass(frozen=True)
class Component:
    """Parameters linked by symmetries. Moving them does not change the gradients of any other parameter's orbit."""

    parameters: tuple[str, ...]
    symmetries: tuple[Symmetry, ...]


def components(symmetries: Sequence[Symmetry], names: Sequence[str]) -> list[Component]:
    """Return the connected components of parameters linked by symmetries, in the order of their first parameters."""
    number = {name: place for place, name in enumerate(names)}
    links = [(number[s.parameters[0]], number[name]) for s in symmetries for name in s.parameters]
    rows, columns = np.array(links, int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(links)), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(graph, directed=False)
    members: dict[int, list[str]] = {}
    for name, label in zip(names, labels.tolist(), strict=True):
        members.setdefault(label, []).append(name)
    return [
        Component(tuple(inside), tuple(s for s in symmetries if s.parameters[0] in inside))
        for inside in members.values()
    ]


def memory_groups(parts: list[Component], params: dict[str, nn.Parameter], batches: int) -> list[list[Component]]:
    """Return the components in groups whose gradients of all batches fit in `MEMORY`."""
    groups: list[list[Component]] = [[]]
    used = 0
    for part in parts:
        size = sum(params[name].numel() * params[name].element_size() for name in part.parameters) * batches
        if groups[-1] and used + size > MEMORY:
            groups.append([])
            used = 0
        groups[-1].append(part)
        used += size
    return groups

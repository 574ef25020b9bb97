"""Sizes of a narrow network in terms of those of a wide one: 12 = 2 heads of 6 becomes 1024 = 8 heads of 128.

A size of the narrow network is written as a formula in sizes that have a name (an axis of a parameter, an attribute of
a module, a field of the configuration), and the formula is evaluated with the sizes of the wide network.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Atom", "Candidate", "SizeMap"]

CONSTANTS = {2: 1, 3: 4, 4: 4}
"""Numbers that a formula may multiply or divide a size by, with their costs: halves of RoPE pairs, fused queries, keys
and values. A product of two sizes is simpler than three times a size."""
MOST_CANDIDATES = 6


class Atom(NamedTuple):
    """A size that has a name, in both networks."""

    narrow: int
    wide: int
    cost: int
    """How far the name is from the parameter: 0 for its own axes, 1 for attributes of modules, 2 for fields of a
    configuration."""


class Candidate(NamedTuple):
    """A size of the wide network, and how complicated its formula is."""

    wide: int
    cost: int


@dataclass(frozen=True)
class SizeMap:
    """The sizes that formulas may use.

    >>> from undertow.torch.census.sizes import Atom, SizeMap
    >>> SizeMap((Atom(6, 128, 1), Atom(5, 32, 1))).candidates(30)  # five heads of six
    (Candidate(wide=4096, cost=3),)
    """

    atoms: tuple[Atom, ...]

    def candidates(self, narrow: int) -> tuple[Candidate, ...]:
        """Return what a size may be in the wide network, the simplest formulas first."""
        best: dict[int, int] = {}

        def add(wide: int, cost: int) -> None:
            if wide > 0:
                best[wide] = min(cost, best.get(wide, cost))

        if narrow in CONSTANTS or narrow == 1:
            add(narrow, CONSTANTS.get(narrow, 0))
        for a in self.atoms:
            for wide, cost in _multiples(narrow, a):
                add(wide, cost)
        for a, b in itertools.combinations(self.atoms, 2):
            cost = a.cost + b.cost + 1
            for wide, more in _multiples(narrow, Atom(a.narrow * b.narrow, a.wide * b.wide, cost)):
                add(wide, more)
            for x, y in ((a, b), (b, a)):
                if x.narrow % y.narrow == 0 and x.wide % y.wide == 0 and x.narrow > y.narrow:
                    for wide, more in _multiples(narrow, Atom(x.narrow // y.narrow, x.wide // y.wide, cost + 1)):
                        add(wide, more)
                if x.narrow - y.narrow == narrow:
                    add(x.wide - y.wide, cost + 1)
            if a.narrow + b.narrow == narrow:
                add(a.wide + b.wide, cost + 1)
        ranked = sorted((Candidate(wide, cost) for wide, cost in best.items()), key=lambda c: c.cost)
        return tuple(ranked[:MOST_CANDIDATES])


def _multiples(narrow: int, atom: Atom) -> Sequence[tuple[int, int]]:
    """Return the size of an atom, its multiples and its parts, where the narrow one is the given size."""
    if narrow == atom.narrow:
        return [(atom.wide, atom.cost)]
    for k, more in CONSTANTS.items():
        if narrow == k * atom.narrow:
            return [(k * atom.wide, atom.cost + more)]
        if k * narrow == atom.narrow and atom.wide % k == 0:
            return [(atom.wide // k, atom.cost + more)]
    return []

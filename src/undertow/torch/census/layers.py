"""Repeated layers of two networks with the same structure, of which one has more layers than the other.

A layer of the deep network corresponds to a layer of the shallow one with the same modules, parameters and settings:
the first to the first, the last to the last, and those between to one between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from undertow.torch.census.axes import Symmetry
from undertow.torch.census.folding import wildcard
from undertow.torch.census.structure import Structure

__all__ = ["LayerMap", "LayersError"]

Names = tuple[tuple[str, str], ...]
"""Pairs (name of a parameter in the shallow network, name in the deep one)."""


class LayersError(ValueError):
    """A layer, or a parameter, has no counterpart."""


@dataclass(frozen=True)
class LayerMap:
    """The layers of a deep network, by those of a shallow one."""

    shallow: Structure
    deep: Structure

    def check_names(self) -> None:
        """Raise a `LayersError` unless both networks have the same parameters up to numbers of layers."""
        sides = [{wildcard(name): name for name, _ in s.shapes} for s in (self.shallow, self.deep)]
        for pattern in sides[1].keys() - sides[0].keys():
            raise LayersError(f"the model has the parameter {sides[1][pattern]}, the network of the census has not")
        for pattern in sides[0].keys() - sides[1].keys():
            raise LayersError(f"the network of the census has the parameter {sides[0][pattern]}, the model has not")

    def check_layers(self) -> None:
        """Raise a `LayersError` unless every layer of the deep network is like one of the shallow network."""
        for _ in self._matches():
            pass

    def same_places(self) -> bool:
        """Return whether every layer is like one at the same place: the first, the last, or between them."""
        return all(self._matches())

    def _matches(self) -> Iterator[bool]:
        """Return for each layer of the deep network whether it is like one at the same place."""
        for prefix, many in self._numbers[1].items():
            few = self._numbers[0].get(prefix, many)
            if few != many:
                yield from (self._source((prefix, prefix), few, many, n)[1] for n in many)

    @cached_property
    def _numbers(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        return _numbers(self.shallow), _numbers(self.deep)

    @cached_property
    def _signatures(self) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
        return _signatures(self.shallow), _signatures(self.deep)

    def instances(self, symmetry: Symmetry, others: Sequence[Symmetry]) -> Iterator[Names]:
        """Return the parameters of each symmetry of the deep network that corresponds to one of the shallow one.

        `others` are all symmetries of the shallow network: what holds in its first and its last layer is carried to
        the layers between if it has none between.
        """
        yield from self._expanded(tuple((name, name) for name in symmetry.parameters), symmetry, others, 0)

    def _expanded(self, names: Names, symmetry: Symmetry, others: Sequence[Symmetry], level: int) -> Iterator[Names]:
        """Replace the numbers at one level of the names, and go on with the next level."""
        if all(level >= name.count(".") for name, _ in names):
            yield names
            return
        prefixes = dict.fromkeys(
            (_prefix(shallow, level), _prefix(deep, level)) for shallow, deep in names if _number(shallow, level) >= 0
        )
        variants: list[Names] = [names]
        for prefix in prefixes:
            variants = [new for old in variants for new in self._numbered(old, prefix, symmetry, others, level)]
        for variant in variants:
            yield from self._expanded(variant, symmetry, others, level + 1)

    def _numbered(
        self, names: Names, prefix: tuple[str, str], symmetry: Symmetry, others: Sequence[Symmetry], level: int
    ) -> Iterator[Names]:
        """Return the names with the numbers of the deep network after one prefix."""
        few, many = self._numbers[0][prefix[0]], self._numbers[1].get(prefix[1], ())
        inside = lambda pair: (_prefix(pair[0], level), _prefix(pair[1], level)) == prefix
        used = sorted({_number(shallow, level) for shallow, deep in names if inside((shallow, deep))})
        if few == many:
            yield names
            return
        if len(few) < 2:
            raise LayersError(
                f"the network of the census has one layer {prefix[0]}.{few[0]} where the model has {len(many)}; take "
                "the census of a network with at least two"
            )
        source = {n: self._source(prefix, few, many, n) for n in many}
        if len(used) == len(few):  # all layers, as the scale of a residual stream
            yield tuple(
                (shallow, _renumbered(deep, level, n))
                for shallow, deep in names
                for n in (many if inside((shallow, deep)) else (_number(deep, level),))
                if not inside((shallow, deep)) or source[n][0] == _number(shallow, level)
            )
            return
        for n in many:
            numbers = self._shifted(prefix, used, few, many, n)
            if numbers is None:
                continue
            if not source[n][1] and not self._everywhere(prefix[0], few, n, prefix, symmetry, others):
                continue
            yield tuple(
                (shallow, _renumbered(deep, level, numbers[_number(shallow, level)]))
                if inside((shallow, deep)) else (shallow, deep)
                for shallow, deep in names
            )  # fmt: skip

    def _shifted(
        self, prefix: tuple[str, str], used: list[int], few: tuple[int, ...], many: tuple[int, ...], n: int
    ) -> dict[int, int] | None:
        """Return the numbers of a symmetry whose first layer is n; None if it does not start there."""
        numbers = {k: n + k - used[0] for k in used}
        if any(k not in many for k in numbers.values()):
            return None
        at_ends = lambda first, last, all_numbers: (first == all_numbers[0], last == all_numbers[-1])
        wanted = at_ends(n, numbers[used[-1]], many)
        alike = [
            k for k in few
            if k + used[-1] - used[0] in few
            and all(self._alike(prefix, k + j - used[0], numbers[j]) for j in used)
        ]  # fmt: skip
        exact = [k for k in alike if at_ends(k, k + used[-1] - used[0], few) == wanted]
        return numbers if used[0] == (exact or alike or [None])[0] else None

    def _source(self, prefix: tuple[str, str], few: tuple[int, ...], many: tuple[int, ...], n: int) -> tuple[int, bool]:
        """Return the layer of the shallow network that layer n corresponds to, and whether it is at the same place."""
        ends = lambda number, numbers: (number == numbers[0], number == numbers[-1])
        alike = [k for k in few if self._alike(prefix, k, n)]
        if not alike:
            raise LayersError(
                f"the layer {prefix[1]}.{n} of the model is unlike every layer {prefix[0]}.* of the network of the "
                "census: other modules, parameters or settings"
            )
        exact = [k for k in alike if ends(k, few) == ends(n, many)]
        return (exact or alike)[0], bool(exact)

    def _alike(self, prefix: tuple[str, str], shallow: int, deep: int) -> bool:
        one, two = self._signatures
        return one[f"{prefix[0]}.{shallow}".lstrip(".")] == two[f"{prefix[1]}.{deep}".lstrip(".")]

    def _everywhere(
        self, family: str, few: tuple[int, ...], n: int, prefix: tuple[str, str], symmetry: Symmetry,
        others: Sequence[Symmetry],
    ) -> bool:  # fmt: skip
        """Return whether all layers of the shallow network like layer n have this symmetry."""
        head = f"{family}." if family else ""
        level = head.count(".")
        own = frozenset(map(wildcard, symmetry.parameters)), symmetry.kind
        having = set()
        for other in others:
            if (frozenset(map(wildcard, other.parameters)), other.kind) == own:
                having |= {_number(name, level) for name in other.parameters if name.startswith(head)}
        return having >= {k for k in few if self._alike(prefix, k, n)}


def _prefix(name: str, level: int) -> str:
    return ".".join(name.split(".")[:level])


def _number(name: str, level: int) -> int:
    """Return the number at a level of a name, -1 if there is none."""
    parts = name.split(".")
    return int(parts[level]) if level < len(parts) and parts[level].isdigit() else -1


def _renumbered(name: str, level: int, number: int) -> str:
    parts = name.split(".")
    if level < len(parts) and parts[level].isdigit():
        parts[level] = str(number)
    return ".".join(parts)


def _numbers(structure: Structure) -> dict[str, tuple[int, ...]]:
    """Return the numbers that follow each prefix of the names of parameters."""
    numbers: dict[str, set[int]] = {}
    for name, _ in structure.shapes:
        for level in range(name.count(".") + 1):
            if _number(name, level) >= 0:
                numbers.setdefault(_prefix(name, level), set()).add(_number(name, level))
    return {prefix: tuple(sorted(held)) for prefix, held in numbers.items()}


def _signatures(structure: Structure) -> dict[str, frozenset[str]]:
    """Return the parameters and the settings below each numbered module, with `*` for the numbers below it."""
    held: dict[str, set[str]] = {}
    lines = [(name, f"{len(shape)} dimensions") for name, shape in structure.shapes]
    lines += [(m.module, m.settings) for m in structure.modules]
    for name, text in lines:
        for level in range(name.count(".") + 1):
            if _number(name, level) >= 0:
                above, below = _prefix(name, level + 1), ".".join(name.split(".")[level + 1 :])
                held.setdefault(above, set()).add(f"{wildcard(below)} {text}")
    return {name: frozenset(texts) for name, texts in held.items()}

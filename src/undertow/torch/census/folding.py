"""The table of a census: one row for the same symmetry in every layer."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from undertow._table import ResultTable
from undertow.torch.census.axes import Axis, Symmetry
from undertow.torch.census.layout import Layout, layout_of

__all__ = ["FoldedRow", "fold_names", "fold_symmetries", "folded_table", "wildcard"]

_Side = tuple[tuple[str, int, tuple[object, ...], Layout | bytes], ...]


def wildcard(name: str) -> str:
    """Return the name of a parameter with `*` in place of numbers.

    >>> from undertow.torch.census.folding import wildcard
    >>> wildcard("model.layers.11.mlp.up_proj.weight")
    'model.layers.*.mlp.up_proj.weight'
    """
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def fold_names(names: Sequence[str]) -> list[str]:
    """Return names with `*` in place of numbers, each once, with the count of those that it stands for.

    >>> from undertow.torch.census.folding import fold_names
    >>> fold_names(["norm.weight", "layers.0.bias", "layers.1.bias"])
    ['norm.weight', 'layers.*.bias (x 2)']
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(wildcard(name), []).append(name)
    return [f"{star} (x {len(group)})" if len(group) > 1 else group[0] for star, group in groups.items()]


def _relative(name: str, first: dict[str, int]) -> str:
    """Return the name with `*`, `*+1`, ... in place of numbers, relative to the first number under the same prefix."""
    parts = []
    for part in name.split("."):
        if part.isdigit():
            distance = int(part) - first[".".join(parts)]
            parts.append("*" + (f"+{distance}" if distance else ""))
        else:
            parts.append(part)
    return ".".join(parts)


def _first_numbers(names: Sequence[str]) -> dict[str, int]:
    """Return the least number after each prefix; prefixes are written as `_relative` writes them."""
    first: dict[str, int] = {}
    depth = max((name.count(".") for name in names), default=0) + 1
    for level in range(depth):
        for name in names:
            parts = name.split(".")
            if level < len(parts) and parts[level].isdigit():
                prefix = _relative(".".join(parts[:level]), first)
                first[prefix] = min(first.get(prefix, int(parts[level])), int(parts[level]))
    return first


@dataclass(frozen=True)
class FoldedRow:
    """Symmetries that differ only in the numbers in the names of their parameters."""

    module: str
    """The modules that hold the parameters, with `*` for the numbers that differ."""
    symmetries: tuple[Symmetry, ...]

    @property
    def where(self) -> str:
        """The parameters on both sides, without the name of the module."""
        first, single = self.symmetries[0], len(self.symmetries) == 1
        numbers, repeats = _first_numbers(first.parameters), Counter(map(wildcard, first.parameters))

        def pattern(name: str) -> str:
            if repeats[wildcard(name)] > 2:  # a symmetry of all layers
                return wildcard(name)
            return name if single else _relative(name, numbers)

        plus, minus = (_side_text(side, self.module, pattern) for side in (first.plus, first.minus))
        return f"{minus} against {plus}" if minus else plus

    @property
    def charges(self) -> int:
        """Number of independent charges of all of them."""
        return sum(symmetry.generators for symmetry in self.symmetries)


def _side_text(side: tuple[Axis, ...], module: str, pattern: Callable[[str], str]) -> str:
    """Return the axes of one side; axes whose names have the same pattern are written once, with their count."""
    counts: dict[str, int] = {}
    for axis in side:
        name = pattern(axis.parameter).removeprefix(f"{module}." if module else "")
        text = str(replace(axis, parameter=name))
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(text + (f" (x {count})" if count > 1 else "") for text, count in counts.items())


def _key(symmetry: Symmetry) -> tuple[object, ...]:
    """Return all that symmetries of one row share: kind, group, and sides up to the numbers in names."""
    first = _first_numbers(symmetry.parameters)

    def side(axes: tuple[Axis, ...]) -> _Side:
        fixed = lambda a: (a.length, a.dimensions, a.shift, a.role, a.fold, a.power)
        return tuple(
            (_relative(a.parameter, first), a.axis, fixed(a), layout_of(a.index) or a.index.tobytes()) for a in axes
        )

    return symmetry.kind, symmetry.size, symmetry.block, symmetry.exact, side(symmetry.plus), side(symmetry.minus)


def fold_symmetries(symmetries: Sequence[Symmetry]) -> list[FoldedRow]:
    """Return the symmetries in rows, in the order of the first of each row."""
    groups: dict[tuple[object, ...], list[Symmetry]] = {}
    for symmetry in symmetries:
        groups.setdefault(_key(symmetry), []).append(symmetry)
    return [FoldedRow(_module(group), tuple(group)) for group in groups.values()]


def _module(group: list[Symmetry]) -> str:
    """Return the longest common name of the modules, with `*` for numbers that differ between the symmetries."""
    names = [name.split(".")[:-1] for symmetry in group for name in symmetry.parameters]
    shared = []
    for parts in zip(*names, strict=False):
        if len({"*" if part.isdigit() else part for part in parts}) > 1:
            break
        if len({*parts}) > 1 and any(_numbers_at(symmetry, len(shared)) > 1 for symmetry in group):
            break
        shared.append(parts[0] if len({*parts}) == 1 else "*")
    return ".".join(shared)


def _numbers_at(symmetry: Symmetry, level: int) -> int:
    """Return how many different names a symmetry has at one level of the names of its parameters."""
    return len({name.split(".")[level] for name in symmetry.parameters})


def folded_table(
    title: str, groups: Sequence[tuple[str, Sequence[Symmetry]]], notes: Sequence[str] = ()
) -> ResultTable:
    """Return a table with a row for the same symmetry in every layer. `groups`: pairs (mark, symmetries)."""
    rows = []
    for mark, symmetries in groups:
        for row in fold_symmetries(symmetries):
            first, count = row.symmetries[0], len(row.symmetries)
            group = f"{first.size // first.block} x GL({first.block})" if first.block > 1 else f"{first.size} scales"
            layers = "" if count == 1 else f"x {count} layers" if re.search(r"(^|\.)\*", row.module) else f"x {count}"
            change = max(symmetry.change for symmetry in row.symmetries)
            kind = f"{first.kind} ({mark})" if mark else first.kind
            rows.append((row.module, kind, group, layers, f"{row.charges:,}", f"{change:.0e}", row.where))
    header = ("module", "kind", "group", "layers", "charges", "change", "parameters")
    return ResultTable(title, header, tuple(rows), "llllrrl", tuple(notes))

"""Checks of scaling maps against a census, and by moves of the model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from undertow._table import ResultTable, html_of, shortened, text_of
from undertow.torch._copies import Batch, Loss, unwrap
from undertow.torch.census.scaling.entries import ScalingEntry, ScalingMap, scaling_entry
from undertow.torch.census.scaling.layers import folded, layer_of, match_layers, pair_layers
from undertow.torch.census.scaling.moves import measure_scaling, model_layers
from undertow.torch.census.scaling.verdict import (
    AbstractCensus,
    ScaledLayer,
    ScalingIndex,
    census_layers,
    census_verdict,
    with_measurement,
)

__all__ = ["ScalingCheck", "ScalingReport", "check_scaling", "check_scaling_map"]

TIED = " with a weight; a tied weight has the name of its first layer"
SENTENCES = {
    "preserves": "preserves the function",
    "changes": "changes the function",
    "unproved": "is not proved",
}


@dataclass(frozen=True)
class ScalingCheck:
    """Verdict on an entry of a scaling map, for each layer that its source selects.

    The truth value of the check is True if all layers preserve the function.

    >>> import torch
    >>> from undertow.torch import census, check_scaling
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> found = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> check = check_scaling(found, "0", "2")
    >>> print(bool(check), check.verdict, [layer.source for layer in check])
    True preserves ['0']
    """

    entry: ScalingEntry
    layers: tuple[ScaledLayer, ...]
    unmatched: tuple[str, ...] = ()
    """Patterns that select no layer."""
    without_readers: tuple[str, ...] = ()
    """Sources whose own layer has none of the readers."""

    def __bool__(self) -> bool:
        return self.verdict == "preserves" and not self.unmatched

    def __iter__(self) -> Iterator[ScaledLayer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def verdict(self) -> str:
        """ "preserves", "changes" or "unproved": the worst over the layers; "no match" without layers."""
        verdicts = {layer.verdict for layer in self.layers}
        return next((name for name in ("changes", "unproved", "preserves") if name in verdicts), "no match")

    @property
    def change(self) -> float | None:
        """Largest relative change of the outputs, at random weights or at those of the model; None if not measured."""
        changes = [c for layer in self.layers for c in (layer.change, layer.own_change) if c is not None]
        return max((c for c in changes if not math.isnan(c)), default=None)

    @property
    def missing(self) -> tuple[str, ...]:
        """Layers that read a source and are not among its readers, with numbers replaced by `*`."""
        return _names(layer.missing for layer in self.layers)

    @property
    def extra(self) -> tuple[str, ...]:
        """Readers that do not read their source, with numbers replaced by `*`."""
        return _names(layer.extra for layer in self.layers)

    @property
    def instead(self) -> tuple[str, ...]:
        """Layers against which the readers can be scaled instead, with numbers replaced by `*`."""
        return _names(layer.instead for layer in self.layers)

    def _table(self) -> ResultTable:
        title = f"{self.entry}: {SENTENCES.get(self.verdict, 'selects no layer')}"
        rows, notes = {}, {}
        for layer in self.layers:
            parts = layer.missing, layer.extra, layer.instead
            lists = tuple(", ".join(_names([names])) for names in parts)
            row = (folded(layer.source), layer.verdict, *lists)
            rows.setdefault(row, []).append(layer)
            notes.setdefault(folded(layer.reason), None)
        header = ("source", "layers", "verdict", "change, random weights", "change, own weights", "missing", "too many",
                  "instead")  # fmt: skip
        cells = [
            (row[0], str(len(layers)), row[1], _largest(x.change for x in layers),
             _largest(x.own_change for x in layers), *row[2:])
            for row, layers in rows.items()
        ]  # fmt: skip
        used = [k for k in range(len(header)) if k < 3 or any(cell[k] for cell in cells)]
        pick = lambda line: tuple(line[k] for k in used)
        short, more = shortened([pick(cell) for cell in cells], "sources")
        said = [f"{note}." for note in list(notes)[:4]]
        said += [f"{pattern} selects no layer{TIED}." for pattern in self.unmatched]
        if self.without_readers and self.layers:
            said.append(f"{len(self.without_readers)} more layers match the source and have no readers beside them.")
        return ResultTable(title, pick(header), short, "".join("r" if k in (1, 3, 4) else "l" for k in used),
                           (*more, *said))  # fmt: skip

    def __str__(self) -> str:
        return text_of([self._table()])

    def _repr_html_(self) -> str:
        return html_of([self._table()])


@dataclass(frozen=True)
class ScalingReport:
    """Checks of all entries of a scaling map. Its truth value is True if every entry preserves the function.

    >>> import torch
    >>> from undertow.torch import ScalingEntry, census, check_scaling_map
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> found = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> report = check_scaling_map(found, [ScalingEntry("0", ("2",)), ScalingEntry("2", ("0",))])
    >>> print(bool(report), [check.verdict for check in report])
    False ['preserves', 'unproved']
    """

    checks: tuple[ScalingCheck, ...]

    def __bool__(self) -> bool:
        return all(self.checks)

    def __iter__(self) -> Iterator[ScalingCheck]:
        return iter(self.checks)

    def __len__(self) -> int:
        return len(self.checks)

    def _tables(self) -> list[ResultTable]:
        right = sum(map(bool, self.checks))
        return [
            ResultTable(f"{right} of {len(self.checks)} entries preserve the function"),
            *(check._table() for check in self.checks),
        ]

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self._tables())

    def _repr_html_(self) -> str:
        return html_of(self._tables())


def _names(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(folded(name) for names in lists for name in names))


def _largest(changes: Iterable[float | None]) -> str:
    values = [change for change in changes if change is not None]
    largest = max((v for v in values if not math.isnan(v)), default=None)
    if largest is None:
        return "not finite" if values else ""
    return f"{largest:.1%}" if largest >= 1e-3 else f"{largest:.0e}"


def check_scaling(
    census: AbstractCensus,
    source: str,
    readers: str | Sequence[str],
    *,
    model: nn.Module | None = None,
    batch: Batch = None,
    loss: Loss | None = None,
    seed: int = 0,
) -> ScalingCheck:
    """Return whether a layer may be divided by one scale per output channel, and its readers multiplied by them.

    The verdict is that of the census: a symmetry that contains the map, or the readers that are missing, those that
    are too many, or the layer that is meant instead. With `model`, `batch` and `loss` the change of the outputs is
    measured too, in double precision for random scales, and decides.

    **Arguments:**

    - `census`: the census of the network.
    - `source`: the layer that is divided, a norm or a linear layer: a name, the end of a name, or "re:" and a regular
      expression. It may select one layer in each block of the network.
    - `readers`: names or patterns of the layers that read it. A reader belongs to the source with which it shares the
      deepest parent.
    - `model`, `batch`, `loss`: as for `census`; all three or none.
    - `seed`: seed of the random weights and scales.

    >>> import torch
    >>> from undertow.torch import census
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> batch, loss = torch.randn(6, 5), lambda model, x: model(x).square().mean()
    >>> symmetries = census(net, batch, loss)
    >>> bool(symmetries.check_scaling("0", "2"))
    True
    >>> print(symmetries.check_scaling("0", "2", model=net, batch=batch, loss=loss).change < 1e-12)
    True
    """
    return _check(census, scaling_entry([readers, source]), model, batch, loss, seed, "check_scaling")


def check_scaling_map(
    census: AbstractCensus,
    entries: ScalingMap | Sequence[ScalingEntry | Mapping[str, object] | Sequence[object]],
    *,
    model: nn.Module | None = None,
    batch: Batch = None,
    loss: Loss | None = None,
    seed: int = 0,
) -> ScalingReport:
    """Return the checks of all entries of a scaling map; see `check_scaling`.

    `entries` is a `ScalingMap` (`load_scaling_map` reads one from a file), or a list of entries in one of the forms
    that `load_scaling_map` describes.

    >>> import torch
    >>> from undertow.torch import census, check_scaling_map
    >>> net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    >>> symmetries = census(net, torch.randn(6, 5), lambda model, x: model(x).square().mean())
    >>> print(bool(check_scaling_map(symmetries, [{"smooth_layer": "0", "balance_layers": ["2"]}, [["0"], "2"]])))
    False
    """
    if not entries:
        raise ValueError("`check_scaling_map`: `entries` is empty; give at least one source with its readers.")
    checks = (
        _check(census, scaling_entry(entry), model, batch, loss, seed, "check_scaling_map") for entry in entries
    )  # fmt: skip
    return ScalingReport(tuple(checks))


def _check(
    census: AbstractCensus,
    entry: ScalingEntry,
    model: nn.Module | None,
    batch: Batch,
    loss: Loss | None,
    seed: int,
    call: str,
) -> ScalingCheck:
    given = [name for name, value in (("model", model), ("batch", batch), ("loss", loss)) if value is not None]
    if len(given) not in (0, 3):
        raise ValueError(
            f"`{call}`: got {' and '.join(f'`{name}`' for name in given)}; give all of `model`, `batch` and `loss` to "
            "measure the change of the outputs, or none of them."
        )
    names = census_layers(census) if model is None else model_layers(model)
    sources = match_layers(entry.source, names)
    selected = [match_layers(reader, names) for reader in entry.readers]
    pairs = zip((entry.source, *entry.readers), (sources, *selected), strict=True)
    unmatched = tuple(pattern for pattern, found in pairs if not found)
    matches = pair_layers(sources, selected)
    index = ScalingIndex(census)
    layers = [census_verdict(index, match) for match in matches if match.readers]
    if model is not None and loss is not None and layers:
        measured = measure_scaling(model, batch, loss, [match for match in matches if match.readers], seed=seed)
        ties = _ties(model)
        layers = [with_measurement(layer, change, ties) for layer, change in zip(layers, measured, strict=True)]
    without = tuple(match.source for match in matches if not match.readers)
    return ScalingCheck(entry, tuple(layers), unmatched, without)


def _ties(model: nn.Module) -> dict[str, str]:
    """Return for each layer that shares its weight with another one the name of that layer."""
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, parameter in unwrap(model).named_parameters(remove_duplicate=False):
        layer, other = layer_of(name), first.setdefault(id(parameter), layer_of(name))
        if other != layer:
            ties |= {layer: other, other: layer}
    return ties

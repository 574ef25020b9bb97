"""What moving a network to its noise equilibrium is worth to training: default and imbalanced starts, SGD and Adam.

    python -m studies.equilibrate

Every start is trained as it is and moved, with and without warm-up, over a grid of step sizes in factors of 2 that is
extended until no best step size sits at an edge and the largest one is too large. Compared are the loss at the best
step size of each, and the largest step size that is still of use.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from studies.results import interval, made_by, publish, save, table
from studies.training import (
    Adapted,
    Recipe,
    Transformer,
    cross_entropy,
    digits,
    gradients,
    grammar,
    mlp,
    stacked,
    train,
)
from torch import Tensor, nn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Scale", "figures", "page", "study"]

NETWORKS = ("ReLU network", "transformer", "adapters")
STARTS = ("default", "imbalanced")
OPTIMISERS = {"SGD": 0.0, "Adam": 1.0}
GRIDS = {"SGD": (-6, 3), "Adam": (-11, -2)}
"""Exponents of 2 that every grid of step sizes begins with, both ends in it."""
MORE = 3
"""Exponents that are added at an edge."""
FACTOR = 2.0
"""Imbalanced starts have every generator moved by a log factor drawn evenly from -2 to 2."""


@dataclass(frozen=True)
class Scale:
    """Sizes of the study."""

    seeds: int = 10
    steps: int = 400
    """Of the ReLU network."""
    text_steps: int = 200
    """Of the transformer and of its adapters."""
    warm_up: float = 0.2
    """Part of the steps over which the step size rises, in runs with warm-up."""
    width: int = 256
    text_width: int = 64
    layers: int = 4
    tokens: int = 32
    batch: int = 32
    text_batch: int = 16
    rank: int = 8
    noise_batches: int = 32
    """Minibatches that the equilibrium is found from."""
    sentences: int = 20_000
    base_steps: int = 600
    """Of Adam, for the network that adapters are put into."""
    adapter_steps: int = 20
    """Of SGD at step size 0.5 from B = 0 to where adapters start: at B = 0 there is no finite equilibrium."""
    together: int = 1000
    """Runs in one program, at most."""
    rounds: int = 8
    """Extensions of a grid, at most."""


SMALL = Scale(
    seeds=2, steps=6, text_steps=4, width=8, text_width=8, layers=1, tokens=6, batch=8, text_batch=4, rank=2,
    noise_batches=4, sentences=200, base_steps=2, adapter_steps=4, rounds=1,
)  # fmt: skip


class Task(NamedTuple):
    """What is trained on what."""

    nets: list[nn.Module]
    """One a seed."""
    batch: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Of indices (..., samples)."""
    draw: Callable[[tuple[int, ...], torch.Generator], Tensor]
    """Indices of random minibatches."""
    steps: int


def task(name: str, scale: Scale, device: torch.device, base: dict[str, Tensor] | None = None) -> Task:
    """One of the three."""
    if name == "ReLU network":
        x, y = (part.to(device) for part in digits())
        draw = lambda shape, generator: torch.randint(0, len(x), (*shape, scale.batch), generator=generator)
        nets: list[nn.Module] = []
        for seed in range(scale.seeds):
            torch.manual_seed(seed)
            nets.append(mlp(64, scale.width, scale.width, 10))
        return Task(nets, lambda index: (x[index], y[index]), draw, scale.steps)
    text = grammar(scale.sentences, 0) if base is None else grammar(scale.sentences, 1, tilt=-1.0)
    text = type(text)(text.words, text.ids.to(device))
    nets = []
    for seed in range(scale.seeds):
        torch.manual_seed(seed)
        net = Transformer(text.words, scale.text_width, 4, scale.layers, scale.tokens)
        if base is not None:
            net.load_state_dict(base)
            adapt(net, scale.rank)
        nets.append(net)
    last = len(text.ids) - scale.tokens - 1
    draw = lambda shape, generator: torch.randint(0, last, (*shape, scale.text_batch), generator=generator)
    return Task(nets, lambda index: text.batch(index, scale.tokens), draw, scale.text_steps)


def adapt(net: nn.Module, rank: int) -> None:
    """Freezes a transformer and puts adapters beside queries, values and what leaves each block."""
    net.requires_grad_(False)
    for block in net.layers:
        for place in ("query", "value", "down"):
            setattr(block, place, Adapted(getattr(block, place), rank))


def imbalanced(net: nn.Module, found: Any, seed: int) -> nn.Module:
    """A copy with every symmetry moved at random."""
    from undertow.torch.axes import move

    other = copy.deepcopy(net)
    params = dict(other.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for relation in found:
            drawn = torch.rand(relation.size, generator=generator, dtype=torch.float64)
            factor = torch.exp(FACTOR * (2 * drawn - 1))
            transform = factor if relation.block == 1 else torch.diag_embed(factor.reshape(-1, relation.block))
            kept = {name: params[name].detach().double() for name in relation.parameters}
            for name, value in move(kept, relation, transform).items():
                params[name].copy_(value)
    return other


def _sgd(net: nn.Module, mine: Task, steps: int, seed: int, optimizer: torch.optim.Optimizer) -> None:
    order = mine.draw((steps,), torch.Generator().manual_seed(seed))
    for index in order:
        optimizer.zero_grad()
        cross_entropy(net, mine.batch(index)).backward()
        optimizer.step()


def base_network(scale: Scale) -> dict[str, Tensor]:
    """A transformer that has learnt the language, for adapters to teach a dialect."""
    mine = task("transformer", scale, torch.device("cpu"))
    net = mine.nets[0]
    _sgd(net, mine, scale.base_steps, 7, torch.optim.Adam(net.parameters(), lr=3e-3))
    return net.state_dict()


def starts(name: str, scale: Scale) -> dict[str, Any]:
    """Where training starts, each as it is and moved, with what the move did. On the CPU."""
    from undertow.torch import census, equilibrate

    base = base_network(scale) if name == "adapters" else None
    mine = task(name, scale, torch.device("cpu"), base)
    points: dict[str, list[nn.Module]] = {}
    moves: dict[str, list[dict[str, float]]] = {start: [] for start in STARTS}
    found = None
    for seed, net in enumerate(mine.nets):
        generator = torch.Generator().manual_seed(500 + seed)
        batches = [mine.batch(index) for index in mine.draw((scale.noise_batches,), generator)]
        if found is None:
            found = census(net, batches[0], cross_entropy)
        if base is not None:
            trainable = [p for p in net.parameters() if p.requires_grad]
            _sgd(net, mine, scale.adapter_steps, 900 + seed, torch.optim.SGD(trainable, lr=0.5))
        for start in STARTS:
            here = net if start == "default" else imbalanced(net, found, seed)
            moved = copy.deepcopy(here)
            done = equilibrate(moved, found, batches, cross_entropy, step_size=0.1, seed=seed)
            points.setdefault(start, []).append(here)
            points.setdefault(f"{start}, moved", []).append(moved)
            moves[start].append(
                {
                    "noise": done.noise[1].value / done.noise[0].value,
                    "curvature": done.curvature[1].value / done.curvature[0].value,
                    "change": done.change,
                    "infinite": done.infinite,
                    "imbalance": done.imbalance,
                }
            )
            print(f"{name}, {start}, seed {seed}: noise x {moves[start][-1]['noise']:.3g}", flush=True)
    return {"params": {key: stacked(nets) for key, nets in points.items()}, "moves": moves, "base": base}


class Case(NamedTuple):
    """A line over step sizes."""

    start: str
    moved: bool
    warm_up: bool

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.start}{', moved' if self.moved else ''}{', warm-up' if self.warm_up else ''}"

    @property
    def point(self) -> str:
        """Where it starts."""
        return f"{self.start}, moved" if self.moved else self.start


CASES = [Case(start, moved, warm) for start in STARTS for moved in (False, True) for warm in (False, True)]


def _order(mine: Task, seeds: int) -> Tensor:
    """Indices of all minibatches, (steps, seeds, samples): the same for every case and step size."""
    each = [mine.draw((mine.steps,), torch.Generator().manual_seed(2000 + seed)) for seed in range(seeds)]
    return torch.stack(each, dim=1)


def start_losses(mine: Task, point: dict[str, Tensor], scale: Scale, device: torch.device) -> np.ndarray:
    """What the last tenth of the minibatches would show without training, (seeds,)."""
    order = _order(mine, scale.seeds)[-max(1, mine.steps // 10) :].to(device)
    net = copy.deepcopy(mine.nets[0]).to(device)
    params = {name: p.to(device) for name, p in point.items()}
    values = [gradients(net, cross_entropy, params, mine.batch(index))[0] for index in order]
    return torch.stack(values).mean(0).cpu().numpy()


def losses(
    mine: Task, points: dict[str, dict[str, Tensor]], wanted: list[tuple[Case, int]], adaptive: float, scale: Scale,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """The mean loss over the last tenth of training, (wanted, seeds), all wanted at once."""
    seeds = scale.seeds
    order = _order(mine, seeds).to(device)
    params = {
        name: torch.cat([points[case.point][name] for case, _ in wanted]).to(device) for name in points[CASES[0].point]
    }
    rows = [
        {"step_size": 2.0**k, "adaptive": adaptive, "warm_up": scale.warm_up * mine.steps * case.warm_up}
        for case, k in wanted
        for _ in range(seeds)
    ]
    recipe = Recipe.of(rows, device=device)
    net = copy.deepcopy(mine.nets[0]).to(device)
    tenth = max(1, mine.steps // 10)
    total, none = torch.zeros(len(rows), device=device), torch.zeros(len(rows), device=device)

    def gradient(values: dict[str, Tensor], t: Tensor) -> dict[str, Tensor]:
        index = order.index_select(0, t)[0].repeat(len(wanted), 1)
        found, answer = gradients(net, cross_entropy, values, mine.batch(index))
        total.add_(torch.where(t >= mine.steps - tenth, found, none))
        return answer

    train(params, recipe, gradient, mine.steps)
    return (total / tenth).reshape(len(wanted), seeds).cpu()


class Line(NamedTuple):
    """One case over its grid: exponents in order and losses (steps, seeds), infinite where a run diverged."""

    exponents: list[int]
    losses: np.ndarray
    start: np.ndarray
    """The loss without training, (seeds,)."""

    @property
    def best(self) -> int:
        """The place of the step size with the least mean loss."""
        return int(np.argmin(self.losses.mean(1)))

    @property
    def useful(self) -> np.ndarray:
        """Where a run takes off at least half of what the best step size does, (steps, seeds)."""
        gain = self.start - self.losses
        return gain >= gain[self.best] / 2

    @property
    def largest(self) -> np.ndarray:
        """For each seed the largest exponent from the best on up to which every run is useful."""
        return self.exponents[self.best] - 1 + self.useful[self.best :].cumprod(0).sum(0)

    def beyond(self) -> list[int]:
        """Exponents to add, if the best is at an edge or the largest is still useful."""
        low, high = self.exponents[0], self.exponents[-1]
        if not np.isfinite(self.losses.mean(1)).any() or self.best == 0:
            return list(range(low - MORE, low))
        if self.useful[-1].any():
            return list(range(high + 1, high + MORE + 1))
        return []


def lines(
    mine: Task, points: dict[str, dict[str, Tensor]], optimiser: str, scale: Scale, device: torch.device
) -> tuple[dict[Case, Line], int]:
    """Every case over a grid that is extended until nothing is left to see beyond it; and the rounds it took."""
    seen: dict[Case, dict[int, np.ndarray]] = {case: {} for case in CASES}
    low, high = GRIDS[optimiser]
    wanted = [(case, k) for case in CASES for k in range(low, high + 1)]
    at_once = max(1, scale.together // scale.seeds)
    start = start_losses(mine, points["default"], scale, device)
    found: dict[Case, Line] = {}
    for round_ in range(scale.rounds + 1):
        for begin in range(0, len(wanted), at_once):
            part = wanted[begin : begin + at_once]
            last = losses(mine, points, part, OPTIMISERS[optimiser], scale, device).numpy()
            for (case, k), row in zip(part, last, strict=True):
                seen[case][k] = np.where(np.isfinite(row), row, np.inf)
        found = {
            case: Line(sorted(rows), np.stack([rows[k] for k in sorted(rows)]), start) for case, rows in seen.items()
        }
        wanted = [(case, k) for case, line in found.items() for k in line.beyond()]
        if not wanted:
            return found, round_
        print(f"  {optimiser}: {len(wanted)} more step sizes", flush=True)
    return found, scale.rounds + 1


def network(name: str, scale: Scale, device: torch.device, kept: Path | None = None) -> dict[str, Any]:
    """One network. `kept`: a folder of starts made before, or None to make them now."""
    file = None if kept is None else kept / f"{name.replace(' ', '_')}.pt"
    made = starts(name, scale) if file is None else torch.load(file, weights_only=True)
    mine = task(name, scale, device, made["base"])
    facts: dict[str, Any] = {
        "parameters": sum(p[0].numel() for p in made["params"]["default"].values()),
        "steps": mine.steps,
        "moves": made["moves"],
        "optimisers": {},
    }
    for optimiser in OPTIMISERS:
        began = time.perf_counter()
        found, rounds = lines(mine, made["params"], optimiser, scale, device)
        facts["start"] = found[CASES[0]].start
        facts["optimisers"][optimiser] = {
            "rounds": rounds,
            "cases": {
                case.name: {"exponents": line.exponents, "losses": line.losses, "open": bool(line.beyond())}
                for case, line in found.items()
            },
        }
        print(f"{name}, {optimiser}: {time.perf_counter() - began:.0f} s", flush=True)
    return facts


def study(scale: Scale, device: torch.device, kept: Path | None = None) -> dict[str, Any]:
    """All networks."""
    began = time.perf_counter()
    networks = {name: network(name, scale, device, kept) for name in NETWORKS}
    return {"made": made_by(device, time.perf_counter() - began), "scale": asdict(scale), "networks": networks}


# the page


def _line(facts: dict[str, Any], optimiser: str, case: Case) -> Line:
    mine = facts["optimisers"][optimiser]["cases"][case.name]
    found = np.array([[np.inf if v is None else v for v in row] for row in mine["losses"]])
    return Line(mine["exponents"], found, np.array(facts["start"]))


class Compared(NamedTuple):
    """Moved against not, at one start and with or without warm-up."""

    before: Line
    after: Line

    @property
    def difference(self) -> tuple[float, float]:
        """Loss at the best step size, moved less not: mean and half the 95 % interval over seeds."""
        return interval(self.after.losses[self.after.best] - self.before.losses[self.before.best])

    @property
    def same(self) -> tuple[float, float]:
        """The same at the step size that is best without the move, where that survives after it."""
        k = self.before.exponents[self.before.best]
        if k not in self.after.exponents or not np.isfinite(self.after.losses[self.after.exponents.index(k)]).all():
            return math.nan, math.nan
        return interval(self.after.losses[self.after.exponents.index(k)] - self.before.losses[self.before.best])

    @property
    def doublings(self) -> tuple[float, float]:
        """How many times the largest useful step size doubles."""
        return interval(self.after.largest - self.before.largest)


def _compared(facts: dict[str, Any], optimiser: str, start: str, warm_up: bool) -> Compared:
    return Compared(*(_line(facts, optimiser, Case(start, moved, warm_up)) for moved in (False, True)))


def _pm(pair: tuple[float, float], signed: bool = True) -> str:
    """A mean with its interval."""
    mean, half = pair
    if not math.isfinite(mean):
        return "none"
    digits = 2 if not math.isfinite(half) or half <= 0 else min(4, max(0, 1 - math.floor(math.log10(half))))
    return f"{mean:{'+' if signed else ''}.{digits}f} ± {half:.{digits}f}"


def _sure(pair: tuple[float, float]) -> int:
    """-1 or 1 where the interval leaves out zero."""
    return 0 if not abs(pair[0]) > pair[1] else int(math.copysign(1, pair[0]))


def _main_table(networks: dict[str, Any], start: str) -> str:
    rows = []
    for network, facts in networks.items():
        for optimiser in facts["optimisers"]:
            for warm_up in (False, True):
                found = _compared(facts, optimiser, start, warm_up)
                losses_ = [_pm(interval(line.losses[line.best]), signed=False) for line in found]
                sizes = [f"2^{line.exponents[line.best]}" for line in found]
                mark = {-1: "better", 0: "no difference", 1: "worse"}[_sure(found.difference)]
                rows.append([
                    network, optimiser, "yes" if warm_up else "no", f"{losses_[0]} at {sizes[0]}",
                    f"{losses_[1]} at {sizes[1]}", f"{_pm(found.difference)}: {mark}", _pm(found.same),
                    _pm(found.doublings),
                ])  # fmt: skip
    head = [
        "network", "optimiser", "warm-up", "loss as it is", "loss moved", "difference, best step sizes",
        "difference, same step size", "doublings of the largest useful step",
    ]  # fmt: skip
    return table(head, rows)


def _warm_table(networks: dict[str, Any]) -> str:
    rows = []
    for network, facts in networks.items():
        for optimiser in facts["optimisers"]:
            for start in STARTS:
                plain, warm = (_compared(facts, optimiser, start, warm_up) for warm_up in (False, True))
                value = {
                    (moved, warm_up): line.losses[line.best]
                    for warm_up, pair in ((False, plain), (True, warm))
                    for moved, line in ((False, pair.before), (True, pair.after))
                }
                rows.append([
                    network, optimiser, start, _pm(interval(value[False, True] - value[False, False])),
                    _pm(interval(value[True, True] - value[True, False])),
                    _pm(interval(value[True, False] - value[False, True])),
                ])  # fmt: skip
    head = [
        "network", "optimiser", "start", "warm-up, as it is", "warm-up, moved",
        "moved without warm-up less not moved with it",
    ]  # fmt: skip
    return table(head, rows)


def _moves_table(networks: dict[str, Any]) -> str:
    rows = []
    for network, facts in networks.items():
        for start in STARTS:
            moves = facts["moves"][start]
            column = lambda name, moves=moves: [math.nan if m[name] is None else m[name] for m in moves]
            rows.append([
                network, f"{facts['parameters']:,}", start, _pm(interval(column("noise")), signed=False),
                _pm(interval(column("curvature")), signed=False), f"{max(column('change')):.0e}",
                str(int(sum(column("infinite")))),
            ])  # fmt: skip
    head = [
        "network", "parameters that train", "start", "noise power, after/before", "largest curvature, after/before",
        "outputs changed by at most", "directions without a finite equilibrium, all seeds",
    ]  # fmt: skip
    return table(head, rows)


def _tally(networks: dict[str, Any], start: str, optimiser: str) -> str:
    """What the intervals say, in words."""
    found = {
        (network, warm_up): _compared(facts, optimiser, start, warm_up)
        for network, facts in networks.items()
        for warm_up in (False, True)
    }
    count = lambda sign, of: sum(_sure(of(c)) == sign for c in found.values())
    loss, steps = (lambda c: c.difference), (lambda c: c.doublings)
    return (
        f"of {len(found)} comparisons (networks, with and without warm-up) the best loss is better in "
        f"{count(-1, loss)}, worse in {count(1, loss)}, without a clear difference in {count(0, loss)}; the largest "
        f"useful step is larger in {count(1, steps)}, smaller in {count(-1, steps)}"
    )


def _conclusions(networks: dict[str, Any]) -> str:
    """What follows from the intervals."""
    loss = lambda network, optimiser, start, warm_up=False: _pm(
        _compared(networks[network], optimiser, start, warm_up).difference
    )
    room = lambda network, start, warm_up=False: _pm(_compared(networks[network], "SGD", start, warm_up).doublings)
    best = lambda moved: _line(networks["transformer"], "SGD", Case("imbalanced", moved, False))
    apart = best(True).exponents[best(True).best] - best(False).exponents[best(False).best]
    pairs = [
        [_compared(facts, optimiser, start, warm_up) for warm_up in (False, True)]
        for facts in networks.values()
        for optimiser in OPTIMISERS
        for start in STARTS
    ]
    gains = [
        interval(warm.losses[warm.best] - plain.losses[plain.best])
        for both in pairs
        for plain, warm in zip(*both, strict=True)
    ]
    fall = 1 / min(np.mean([m["noise"] for m in facts["moves"][s]]) for facts in networks.values() for s in STARTS)
    helped = sum(_sure(gain) < 0 for gain in gains)
    return f"""Expected, from tiny models, was that the move helps imbalanced starts and only those.

- **Imbalanced starts, SGD: refuted for the loss, confirmed in part for step sizes.** Larger steps become useful for
  the transformer ({room("transformer", "imbalanced")} doublings; its best step size moves by {apart}) and for
  adapters ({room("adapters", "imbalanced")}), not for the ReLU network ({room("ReLU network", "imbalanced")}). But
  with each at its best step size the imbalanced network trains no worse without the move: the difference is
  {loss("ReLU network", "SGD", "imbalanced")} for the ReLU network and {loss("transformer", "SGD", "imbalanced")} for
  the transformer, both against the move. Only adapters gain, {loss("adapters", "SGD", "imbalanced")} without warm-up.
- **Imbalanced starts, Adam: expected was no effect, one was found.** The transformer ends better,
  {loss("transformer", "Adam", "imbalanced")}; the ReLU network does not
  ({loss("ReLU network", "Adam", "imbalanced")}).
- **Default starts: the move gains nothing.** Under SGD the transformer ends worse,
  {loss("transformer", "SGD", "default")} and {loss("transformer", "SGD", "default", True)} with warm-up. Without
  warm-up it bears larger steps ({room("transformer", "default")} doublings), which are worth nothing to the loss.
- **In place of a warm-up: cannot be told.** Warm-up itself made {helped} of {len(gains)} lines clearly better.
- Noise power falls by up to {fall:.0f} times (below), curvature nearly as much, and neither predicts any of this.

Of {4 * len(networks) * 2} intervals at 95 % about one leaves out zero by chance. Differences between adapters are all
below 0.3 % of the loss. So: do not equilibrate for a better loss; it is worth a try where a start is known to be
imbalanced and the step size cannot be tuned down, or with Adam from such a start."""


def page(facts: dict[str, Any]) -> str:
    """The page of the study, made from its results."""
    networks, scale, made = facts["networks"], facts["scale"], facts["made"]
    left = [
        f"{network}, {optimiser}, {case}"
        for network, mine in networks.items()
        for optimiser, of in mine["optimisers"].items()
        for case, line in of["cases"].items()
        if line["open"]
    ]
    edges = (
        "Every grid was extended until its best step size was inside and its largest one of no use to any seed."
        if not left
        else f"Grids that still end too early: {'; '.join(left)}."
    )
    tallies = "\n".join(
        f"- **{start.capitalize()} start, {optimiser}**: {_tally(networks, start, optimiser)}."
        for start in STARTS
        for optimiser in OPTIMISERS
    )
    return f"""# Is equilibrating worth it?

`equilibrate` moves a network to its noise equilibrium before training: the same function, less gradient noise. Does
training gain? Made by `python -m studies.equilibrate` on {made["device"]} in {made["seconds"]:.0f} s (torch
{made["torch"]}, {scale["seeds"]} seeds); numbers in `studies/results/equilibrate.json`. All numbers of this page are
from that command; `python -m studies.equilibrate --draw` makes the page from the JSON. Intervals are 95 %, by
Student's t over seeds, paired where two are compared. "Better" and "worse" are said where the interval leaves out
zero.

{tallies}

{_conclusions(networks)}

## Default starts

![Loss over step sizes, SGD](equilibrate-sgd-default.svg)

![Loss over step sizes, Adam](equilibrate-adam-default.svg)

The loss is the mean over the last tenth of the training; step sizes are powers of 2, each case at its own best. "Same
step size": both at the one that is best without the move.

{_main_table(networks, "default")}

## Imbalanced starts

![Loss over step sizes, SGD](equilibrate-sgd-imbalanced.svg)

![Loss over step sizes, Adam](equilibrate-adam-imbalanced.svg)

Every generator of every symmetry moved by a factor between e^−2 and e^2, drawn at random: the same function as the
default start.

{_main_table(networks, "imbalanced")}

## Warm-up

Differences of the loss at the best step sizes. First two columns: with warm-up less without, negative where warm-up
helps. Last: can the move stand in for a warm-up? Negative if it does better.

{_warm_table(networks)}

## What the move did

{_moves_table(networks)}

At B = 0 an adapter has no finite equilibrium and nothing is moved. Adapters start here after {scale["adapter_steps"]}
steps of SGD from there.

## Settings

- ReLU network: 64-{scale["width"]}-{scale["width"]}-10 on scikit-learn's digits, minibatches of {scale["batch"]},
  {networks["ReLU network"]["steps"]} steps.
- Transformer: {scale["layers"]} layers, width {scale["text_width"]}, 4 heads, ReLU, LayerNorm before;
  {scale["text_batch"]} windows of {scale["tokens"]} words from a text that a probabilistic grammar made,
  {networks["transformer"]["steps"]} steps.
- Adapters: rank {scale["rank"]} beside queries, values and the last layer of each block of such a transformer, which
  had learnt the language for {scale["base_steps"]} steps of Adam; they learn a dialect of it with other word
  frequencies. One base network for all seeds.
- Warm-up: the step size rises in proportion over the first {scale["warm_up"]:.0%} of the steps. No momentum, no
  weight decay, no other schedule.
- The best step size has the least mean loss over seeds, every seed finite; it is chosen and judged on the same seeds.
  A step size is useful to a seed if it takes off at least half of what the best one does. {edges}
- The equilibrium is found from {scale["noise_batches"]} minibatches at the start. Adam trains from the same starts;
  its state is empty then.
- Parameters: more than 10 times those of `python -m benchmarks.torch_teleport` ([PyTorch models](../torch.md)), which
  found steps of up to 12 times the size surviving after the move. What survives there is a run that ends below 1.5
  times its first loss; nearly all step sizes here would, so that usefulness is asked for.
- The time is that of training; the starts were made before, on a CPU.
- Losses are of training, after one fixed number of steps: what longer training or a test set would say is not
  covered.
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Loss over step sizes, a panel a network and start."""
    from undertow.figures.style import COLOURS, new_figure

    found = {}
    for optimiser in OPTIMISERS:
        for start in STARTS:
            figure, panels = new_figure(len(facts["networks"]), width=4.2, height=3.3)
            for axes, (network, mine) in zip(panels, facts["networks"].items(), strict=True):
                for moved, colour in ((False, "grey"), (True, "blue")):
                    for warm_up, style in ((False, "-"), (True, "--")):
                        line = _line(mine, optimiser, Case(start, moved, warm_up))
                        kept = np.isfinite(line.losses).all(1) & (line.losses.mean(1) < line.start.mean())
                        x, y = 2.0 ** np.array(line.exponents)[kept], line.losses[kept]
                        axes.errorbar(
                            x, y.mean(1), yerr=[interval(row)[1] for row in y], ls=style, color=COLOURS[colour],
                            label=f"{'moved' if moved else 'as it is'}{', warm-up' if warm_up else ''}", lw=1.2,
                            marker="o", markersize=2.5, capsize=1.5,
                        )  # fmt: skip
                top, low = (
                    float(np.mean(mine["start"])),
                    min(line.losses.mean(1).min() for line in _all(mine, optimiser)),
                )
                axes.set_ylim(low - 0.05 * (top - low), top + 0.05 * (top - low))
                axes.set_xscale("log", base=2)
                axes.set_title(f"{network}, {start} start")
                axes.set_xlabel("step size")
            panels[0].set_ylabel(f"loss, {optimiser}")
            found[f"equilibrate-{optimiser.lower()}-{start}"] = figure
    return found


def _all(facts: dict[str, Any], optimiser: str) -> list[Line]:
    return [_line(facts, optimiser, case) for case in CASES]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.equilibrate", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="figures and page from the JSON that is there")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--starts", type=Path, help="only make the starts, on the CPU, and keep them in this folder")
    parser.add_argument("--from-starts", type=Path, help="train from the starts in this folder")
    given = parser.parse_args()
    if given.starts is not None:
        given.starts.mkdir(parents=True, exist_ok=True)
        for name in NETWORKS:
            torch.save(starts(name, Scale()), given.starts / f"{name.replace(' ', '_')}.pt")
        return
    if not given.draw:
        save("equilibrate", study(Scale(), torch.device(given.device), given.from_starts))
    publish("equilibrate", page, figures)


if __name__ == "__main__":
    main()

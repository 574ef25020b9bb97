"""The page of the study of `equilibrate`: tables, sentences and figures from its results."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from studies.equilibrate import CASES, OPTIMISERS, STARTS, Case, Line
from studies.results import interval, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figures", "page"]


def _line(facts: dict[str, Any], optimiser: str, case: Case) -> Line:
    mine = facts["optimisers"][optimiser]["cases"][case.name]
    losses = np.array([[np.inf if v is None else v for v in row] for row in mine["losses"]])
    return Line(mine["exponents"], losses, np.array(facts["start"]))


class Compared(NamedTuple):
    """A moved network compared with the same network not moved, at one start, with or without warm-up."""

    before: Line
    after: Line

    @property
    def difference(self) -> tuple[float, float]:
        """Difference of the losses at the best step sizes (moved minus not moved): mean and half the 95 % interval."""
        return interval(self.after.losses[self.after.best] - self.before.losses[self.before.best])

    @property
    def same(self) -> tuple[float, float]:
        """The same at the step size that is best without the move, NaN if the moved network diverges there."""
        k = self.before.exponents[self.before.best]
        if k not in self.after.exponents or not np.isfinite(self.after.losses[self.after.exponents.index(k)]).all():
            return math.nan, math.nan
        return interval(self.after.losses[self.after.exponents.index(k)] - self.before.losses[self.before.best])

    @property
    def doublings(self) -> tuple[float, float]:
        """Number of doublings of the largest useful step size."""
        return interval(self.after.largest - self.before.largest)


def _compared(facts: dict[str, Any], optimiser: str, start: str, warm_up: bool) -> Compared:
    return Compared(*(_line(facts, optimiser, Case(start, moved, warm_up)) for moved in (False, True)))


def _pm(pair: tuple[float, float], signed: bool = True) -> str:
    """Return a mean with its interval as text."""
    mean, half = pair
    if not math.isfinite(mean):
        return "none"
    digits = 2 if not math.isfinite(half) or half <= 0 else min(4, max(0, 1 - math.floor(math.log10(half))))
    return f"{mean:{'+' if signed else ''}.{digits}f} ± {half:.{digits}f}"


def _significant_sign(pair: tuple[float, float]) -> int:
    """Return -1 or 1 if the interval excludes zero, else 0."""
    return 0 if not abs(pair[0]) > pair[1] else int(math.copysign(1, pair[0]))


def _main_table(networks: dict[str, Any], start: str) -> str:
    rows = []
    for network, facts in networks.items():
        for optimiser in facts["optimisers"]:
            for warm_up in (False, True):
                compared = _compared(facts, optimiser, start, warm_up)
                losses_ = [_pm(interval(line.losses[line.best]), signed=False) for line in compared]
                sizes = [f"2^{line.exponents[line.best]}" for line in compared]
                mark = {-1: "better", 0: "no difference", 1: "worse"}[_significant_sign(compared.difference)]
                rows.append([
                    network, optimiser, "yes" if warm_up else "no", f"{losses_[0]} at {sizes[0]}",
                    f"{losses_[1]} at {sizes[1]}", f"{_pm(compared.difference)}: {mark}", _pm(compared.same),
                    _pm(compared.doublings),
                ])  # fmt: skip
    head = [
        "network", "optimiser", "warm-up", "loss, not moved", "loss, moved", "difference, best step sizes",
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
        "network", "optimiser", "start", "warm-up, not moved", "warm-up, moved",
        "moved without warm-up minus not moved with warm-up",
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
        "network", "trainable parameters", "start", "noise power, after/before", "largest curvature, after/before",
        "outputs changed by at most", "directions without a finite equilibrium, all seeds",
    ]  # fmt: skip
    return table(head, rows)


def _tally(networks: dict[str, Any], start: str, optimiser: str) -> str:
    """Return the counts of better and worse comparisons as a sentence."""
    compared = {
        (network, warm_up): _compared(facts, optimiser, start, warm_up)
        for network, facts in networks.items()
        for warm_up in (False, True)
    }
    count = lambda sign, of: sum(_significant_sign(of(c)) == sign for c in compared.values())
    loss, steps = (lambda c: c.difference), (lambda c: c.doublings)
    return (
        f"of {len(compared)} comparisons (networks, with and without warm-up) the loss at the best step sizes is "
        f"better in {count(-1, loss)}, worse in {count(1, loss)}, without a clear difference in {count(0, loss)}; the "
        f"largest useful step is larger in {count(1, steps)}, smaller in {count(-1, steps)}"
    )


def _conclusions(networks: dict[str, Any]) -> str:
    """Return the conclusions from the intervals."""
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
    helped = sum(_significant_sign(gain) < 0 for gain in gains)
    return f"""The expectation from tiny models was that the move helps imbalanced starts and only those.

- **Imbalanced starts, SGD: refuted for the loss, confirmed in part for step sizes.** Larger steps become useful for
  the transformer ({room("transformer", "imbalanced")} doublings; its best step size rises by {apart} doublings) and for
  adapters ({room("adapters", "imbalanced")}), not for the ReLU network ({room("ReLU network", "imbalanced")}). But
  with the best step size of each case, the imbalanced network trains no worse without the move. The difference is
  {loss("ReLU network", "SGD", "imbalanced")} for the ReLU network and {loss("transformer", "SGD", "imbalanced")} for
  the transformer, both in favour of no move. Adapters show no clear difference,
  {loss("adapters", "SGD", "imbalanced")}.
- **Imbalanced starts, Adam: an effect was observed, although none was expected.** The transformer ends better,
  {loss("transformer", "Adam", "imbalanced")}; the ReLU network does not
  ({loss("ReLU network", "Adam", "imbalanced")}).
- **Default starts: the move gains nothing.** Under SGD the transformer ends worse,
  {loss("transformer", "SGD", "default")} and {loss("transformer", "SGD", "default", True)} with warm-up. Without
  warm-up it tolerates larger steps ({room("transformer", "default")} doublings), which do not improve the loss.
- **As a replacement for warm-up: not decided.** Warm-up itself clearly improved {helped} of {len(gains)} cases.
- The noise power, the trace of the covariance of a minibatch gradient, falls by a factor of up to {fall:.0f}
  (see below). In the imbalanced ReLU network and transformer the largest curvature falls nearly as much. Neither
  predicts these results.

Of {4 * len(networks) * 2} intervals at 95 % about one excludes zero by chance. The effect of the move on adapters at
their best step sizes is below 0.3 % of the loss everywhere. In summary, do not equilibrate for a better loss. The
move may help if the start is known to be imbalanced and the step size cannot be tuned down, or with Adam from such a
start."""


def page(facts: dict[str, Any]) -> str:
    """Return the page of the study, from its results."""
    networks, scale, made = facts["networks"], facts["scale"], facts["made"]
    open_grids = [
        f"{network}, {optimiser}, {case}"
        for network, mine in networks.items()
        for optimiser, of in mine["optimisers"].items()
        for case, line in of["cases"].items()
        if line["open"]
    ]
    edges = (
        "Every grid was extended until its best step size was inside and its largest one not useful for any seed."
        if not open_grids
        else f"Grids that are still too short: {'; '.join(open_grids)}."
    )
    tallies = "\n".join(
        f"- **{start.capitalize()} start, {optimiser}**: {_tally(networks, start, optimiser)}."
        for start in STARTS
        for optimiser in OPTIMISERS
    )
    return f"""# Is equilibrating worth it?

[`equilibrate`](../torch.md#a-llama) moves a network to its [noise equilibrium](../glossary.md#symmetry) before
training: the same function with less gradient noise. Does training improve? Generated by
`python -m studies.equilibrate` on {made["device"]} in {made["seconds"]:.0f} s (torch
{made["torch"]}, {scale["seeds"]} seeds), with the starts computed on the CPU. All numbers of this page come from
`studies/results/equilibrate.json`; with `--draw` the command writes the page from this file. Intervals are 95 %, by
Student's t over seeds, paired where two cases are compared. The moved case is called "better" or "worse" if the
interval of the difference excludes zero. [Settings](#settings) defines the best step size and the largest useful step.
Another CPU rounds differently, which changes the base network, the starts and slightly the numbers.

{tallies}

{_conclusions(networks)}

## Default starts

![Loss over step sizes, SGD](equilibrate-sgd-default.svg)

![Loss over step sizes, Adam](equilibrate-adam-default.svg)

The loss is the mean over the last tenth of the training. Step sizes are powers of 2, and each case has its own best
one. "Same step size" means that both cases have the step size that is best without the move.

{_main_table(networks, "default")}

## Imbalanced starts

![Loss over step sizes, SGD](equilibrate-sgd-imbalanced.svg)

![Loss over step sizes, Adam](equilibrate-adam-imbalanced.svg)

Every generator of every symmetry is moved by a random factor between $e^{{-2}}$ and $e^2$. The function is that of the
default start.

{_main_table(networks, "imbalanced")}

## Warm-up

Differences of the loss at the best step sizes. The first two columns are with warm-up minus without, negative where
warm-up helps. The last column compares the move with a warm-up; it is negative if the move is better.

{_warm_table(networks)}

## Effect of the move at the start

{_moves_table(networks)}

An adapter adds the product $BA$ of two matrices to a weight. At $B = 0$ it has no finite equilibrium, and nothing is
moved. Adapters therefore start after {scale["adapter_steps"]} steps of SGD from $B = 0$.

## Settings

- ReLU network: 64-{scale["width"]}-{scale["width"]}-10 on scikit-learn's digits, minibatches of {scale["batch"]},
  {networks["ReLU network"]["steps"]} steps.
- Transformer: {scale["layers"]} layers, width {scale["text_width"]}, 4 heads, ReLU, pre-norm;
  {scale["text_batch"]} windows of {scale["tokens"]} words from a text generated by a probabilistic grammar,
  {networks["transformer"]["steps"]} steps.
- Adapters: rank {scale["rank"]}, added to queries, values and the last layer of each block of such a transformer, which
  was trained on the text for {scale["base_steps"]} steps of Adam. They train on a text with other word frequencies.
  All seeds share one base network.
- Warm-up: the step size rises linearly over the first {scale["warm_up"]:.0%} of the steps. No momentum, no
  weight decay, no other schedule.
- The best step size has the least mean loss over seeds, among those with finite losses for all seeds. It is chosen and
  evaluated on the same seeds. A step size is useful for a seed if it reduces the loss by at least half as much as the
  best one. {edges}
- The equilibrium is computed from {scale["noise_batches"]} minibatches at the start. Adam trains from the same starts,
  with an empty state.
- The networks have more than 10 times the parameters of those of `python -m benchmarks.torch_teleport` ([PyTorch
  models](../torch.md)), where step sizes up to 12 times larger succeed after the move. There a run succeeds if it ends
  below 1.5 times its first loss. Nearly all runs of this study do, so that the study uses a stricter criterion.
- Losses are training losses after one fixed number of steps. Longer training and test sets are not covered.
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figures of the loss over step sizes, one panel per network."""
    from undertow.figures.style import COLOURS, new_figure

    drawn = {}
    for optimiser in OPTIMISERS:
        for start in STARTS:
            figure, panels = new_figure(len(facts["networks"]), width=4.2, height=3.3)
            for axes, (network, mine) in zip(panels, facts["networks"].items(), strict=True):
                for moved, colour in ((False, "grey"), (True, "blue")):
                    for warm_up, style in ((False, "-"), (True, "--")):
                        line = _line(mine, optimiser, Case(start, moved, warm_up))
                        trained = np.isfinite(line.losses).all(1) & (line.losses.mean(1) < line.start.mean())
                        x, y = 2.0 ** np.array(line.exponents)[trained], line.losses[trained]
                        axes.errorbar(
                            x, y.mean(1), yerr=[interval(row)[1] for row in y], ls=style, color=COLOURS[colour],
                            label=f"{'moved' if moved else 'not moved'}{', warm-up' if warm_up else ''}", lw=1.2,
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
            panels[0].legend()
            drawn[f"equilibrate-{optimiser.lower()}-{start}"] = figure
    return drawn


def _all(facts: dict[str, Any], optimiser: str) -> list[Line]:
    return [_line(facts, optimiser, case) for case in CASES]

"""The page of the study of starts at the equilibrium of AdamW: tables, sentences and figures from its results."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from studies.adamw_starts import CASES, STARTS
from studies.equilibrate import Case, Line
from studies.results import interval, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figures", "page"]


class Compared(NamedTuple):
    """A start without and with the move."""

    before: Line
    after: Line
    difference: tuple[float, float]
    """Loss moved minus not moved, each at its best step size, with its interval over seeds."""
    same: tuple[float, float]
    """The same at the step size that is best without the move."""
    doublings: tuple[float, float]
    """Doublings of the largest useful step size."""
    early: tuple[float, float]
    """Loss moved minus not moved in the first quarter of training, each at its best step size."""


def _array(entries: Any) -> np.ndarray:
    values = np.array(entries, dtype=float)
    return np.where(np.isfinite(values), values, np.inf)


def _line(facts: dict[str, Any], case: Case) -> Line:
    of = facts["cases"][case.name]
    return Line(of["exponents"], _array(of["losses"]), _array(facts["start"][case.start]))


def _over_time(facts: dict[str, Any], case: Case) -> np.ndarray:
    """Return the loss in each part of the training at the best step size, (seeds, parts)."""
    return _array(facts["cases"][case.name]["over_time"])


def _compared(facts: dict[str, Any], start: str, warm_up: bool) -> Compared:
    cases = [Case(start, moved, warm_up) for moved in (False, True)]
    before, after = (_line(facts, case) for case in cases)
    paired = lambda one, two: interval(two - one)
    same = math.nan, math.nan
    if before.exponents[before.best] in after.exponents:
        place = after.exponents.index(before.exponents[before.best])
        same = paired(before.losses[before.best], after.losses[place])
    quarter = [_over_time(facts, case)[:, : max(1, _over_time(facts, case).shape[1] // 4)].mean(1) for case in cases]
    return Compared(
        before, after, paired(before.losses[before.best], after.losses[after.best]), same,
        paired(before.largest, after.largest), paired(*quarter),
    )  # fmt: skip


def _pm(pair: tuple[float, float], signed: bool = True) -> str:
    """Return a mean with its interval as text."""
    mean, half = pair
    if not math.isfinite(mean):
        return "diverged"
    digits = 2 if not math.isfinite(half) or half <= 0 else min(5, max(0, 1 - math.floor(math.log10(half))))
    return f"{mean:{'+' if signed else ''}.{digits}f} ± {half:.{digits}f}"


def _sign(pair: tuple[float, float]) -> int:
    """Return -1 or 1 if the interval excludes zero, else 0."""
    return 0 if not abs(pair[0]) > pair[1] else int(math.copysign(1, pair[0]))


def _main_table(networks: dict[str, Any], start: str) -> str:
    rows = []
    for network, facts in networks.items():
        for warm_up in (False, True):
            mine = _compared(facts, start, warm_up)
            losses = [f"{_pm(interval(line.losses[line.best]), signed=False)} at 2^{line.exponents[line.best]}"
                      for line in (mine.before, mine.after)]  # fmt: skip
            mark = {-1: "better", 0: "no difference", 1: "worse"}[_sign(mine.difference)]
            rows.append([
                network, "yes" if warm_up else "no", *losses, f"{_pm(mine.difference)}: {mark}", _pm(mine.same),
                _pm(mine.early), _pm(mine.doublings),
            ])  # fmt: skip
    head = [
        "network", "warm-up", "loss, not moved", "loss, moved", "difference, best step sizes",
        "difference, same step size", "difference, first quarter", "doublings of the largest useful step",
    ]  # fmt: skip
    return table(head, rows)


def _tally(networks: dict[str, Any], start: str) -> str:
    """Return the counts of better and worse comparisons as a sentence."""
    mine = [_compared(facts, start, warm_up) for facts in networks.values() for warm_up in (False, True)]
    count = lambda sign, pairs: sum(_sign(pair) == sign for pair in pairs)
    loss, early, room = ([getattr(c, name) for c in mine] for name in ("difference", "early", "doublings"))
    return (
        f"- **{start.capitalize()} start**: of {len(mine)} comparisons (networks, with and without warm-up) the loss "
        f"at the best step sizes is better in {count(-1, loss)}, worse in {count(1, loss)}, without a clear difference "
        f"in {count(0, loss)}; the loss in the first quarter is better in {count(-1, early)}, worse in "
        f"{count(1, early)}; the largest useful step is larger in {count(1, room)}, smaller in {count(-1, room)}."
    )


def _relative(networks: dict[str, Any], name: str) -> str:
    """Return the range of the differences of a network over its starts, relative to the loss without the move."""
    mine = [_compared(networks[name], start, warm_up) for start in STARTS for warm_up in (False, True)]
    shares = [c.difference[0] / float(np.mean(c.before.losses[c.before.best])) for c in mine]
    return f"{min(shares):+.1%} to {max(shares):+.1%}"


def _conclusions(networks: dict[str, Any]) -> str:
    """Return the conclusions, with their numbers from the results."""
    lines = []
    for name, facts in networks.items():
        mine = [_compared(facts, start, warm_up) for start in STARTS for warm_up in (False, True)]
        signs = [_sign(c.difference) for c in mine]
        early = [_sign(c.early) for c in mine]
        lines.append(
            f"- **{name}**: better in {signs.count(-1)} and worse in {signs.count(1)} of {len(mine)} comparisons. The "
            f"loss changes by {_relative(networks, name)}. In the first quarter the loss is lower in {early.count(-1)} "
            f"and higher in {early.count(1)}."
        )
    rows = "\n".join(lines)
    return f"""{rows}

All losses are training losses. The ReLU network is trained on its wrong labels many times, so that a smaller loss
means that it fits more of them. Without the move, training brings the network to the equilibrium in about
$1/(\\eta\\lambda)$ steps."""


def page(facts: dict[str, Any]) -> str:
    """Return the page of the study, from its results."""
    networks, scale, made = facts["networks"], facts["scale"], facts["made"]
    sizes = scale["networks"]["sizes"]
    open_grids = [f"{network}, {case}" for network, mine in networks.items() for case, of in mine["cases"].items()
                  if of["open"]]  # fmt: skip
    edges = (
        "Every grid was extended until its best step size was inside and its largest one not useful for any seed."
        if not open_grids
        else f"Grids that are still too short: {'; '.join(open_grids)}."
    )
    steps = "; ".join(
        f"{name} {mine['steps']:,} ({mine['parameters']:,} parameters)" for name, mine in networks.items()
    )
    sections = "\n\n".join(
        f"## {start.capitalize()} starts\n\n![Loss over training, {start} start](adamw-starts-{start}.svg)\n\n"
        f"{_main_table(networks, start)}"
        for start in STARTS
    )
    return f"""# Is it worth starting at AdamW's equilibrium?

A network trained with AdamW goes to the noise equilibrium of AdamW ([study](adamw.md)).
[`equilibrate(..., optimiser="adamw")`](../torch.md#a-llama) moves it there before training and keeps its function. Does
training improve? Generated by `python -m studies.adamw_starts` on {made["device"]} in {made["seconds"]:.0f} s (torch
{made["torch"]}, {scale["seeds"]} seeds). All numbers of this page come from `studies/results/adamw-starts.json`; with
`--draw` the command writes the page from this file. Intervals are 95 %, by Student's t over seeds, paired where two
cases are compared. The moved case is called "better" or "worse" if the interval of the difference excludes zero. The
rules are those of [the study for SGD and Adam](equilibrate.md). [Settings](#settings) describes the starts and defines
the best step size and the largest useful step.

{chr(10).join(_tally(networks, start) for start in STARTS)}

Of {len(STARTS) * len(networks) * 2} intervals at 95 % about one excludes zero by chance.

{_conclusions(networks)}

{sections}

## Settings

- AdamW with $\\lambda = {scale["weight_decay"]:g}$, $b_1 = 0.9$, $b_2 = {scale["b2"]:g}$ and a cosine schedule to zero;
  "warm-up" adds a linear rise over the first {scale["warm_up"]:.0%} of the steps. Step sizes are powers of 2, and each
  case has its own best one.
- The loss is the mean over the last tenth of training, on noisy data: 15 % of the labels or of the words are random.
- ReLU network 64-{sizes["hidden"]}-10 on digits; a Llama with {sizes["layers"]} layers and width {sizes["width"]} on
  text; adapters of rank {sizes["rank"]} in a trained Llama. An adapter adds the product $BA$ of two matrices to a
  weight and begins with $B = 0$, where there is no finite equilibrium, so that adapters start after
  {scale["adapter_steps"]} steps of AdamW. Steps: {steps}.
- Imbalanced starts move every generator by a random factor between $e^{{-2}}$ and $e^2$, and have the function of the
  default start. In small starts all matrices are multiplied by {scale["shrink"]:g}, which gives another function.
- The equilibrium is computed for the peak step size from {scale["noise_batches"]} minibatches at the start, for
  the scales of all symmetries. The state of the optimiser starts empty. The move changes the loss by at most
  {max(mine["change"] for mine in networks.values()):.0e} of its value.
- The best step size has the least mean loss over seeds, among those with finite losses for all seeds. It is chosen and
  evaluated on the same seeds. A step size is useful for a seed if it reduces the loss by at least half as much as the
  best one. {edges}
"""


def figures(facts: dict[str, Any]) -> "dict[str, Figure]":
    """Return the figures of the loss over training at the best step sizes, one panel per network."""
    from undertow.figures.style import COLOURS, new_figure

    drawn = {}
    for start in STARTS:
        figure, panels = new_figure(len(facts["networks"]), width=4.2, height=3.3)
        for axes, (network, mine) in zip(panels, facts["networks"].items(), strict=True):
            for case in (case for case in CASES if case.start == start):
                values = _over_time(mine, case)
                if not np.isfinite(values).all():
                    continue
                done = (np.arange(values.shape[1]) + 0.5) / values.shape[1]
                line = _line(mine, case)
                axes.errorbar(
                    done, values.mean(0), yerr=[interval(column)[1] for column in values.T], lw=1.2, capsize=1.5,
                    color=COLOURS["blue" if case.moved else "grey"], ls="--" if case.warm_up else "-",
                    label=f"{'moved' if case.moved else 'not moved'}{', warm-up' if case.warm_up else ''}, "
                    f"2^{line.exponents[line.best]}",
                )  # fmt: skip
            axes.set_title(f"{network}, {start} start")
            axes.set_xlabel("part of the training")
            axes.legend()
        panels[0].set_ylabel("loss at the best step size")
        drawn[f"adamw-starts-{start}"] = figure
    return drawn

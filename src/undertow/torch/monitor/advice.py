"""What measurements mean, in sentences: what was measured, what one might do, and what not to conclude."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from undertow._table import number
from undertow.torch.monitor.noise_scale import NoiseScale, NoiseScales
from undertow.torch.monitor.reading import Row
from undertow.torch.monitor.verdict import verdicts

__all__ = ["Section", "sections"]

LARGE = 4.0
"""A batch is called small or large if it differs from the noise scale by more than this factor."""
NAMED = 3
"""Layers named in one sentence."""


@dataclass(frozen=True)
class Section:
    """A heading with sentences; `name` identifies it on a page."""

    name: str
    title: str
    sentences: tuple[str, ...]


def sections(scales: NoiseScales, rows: Sequence[Row], skipped: Sequence[tuple[int, str]]) -> list[Section]:
    """Return the sentences about a run; `rows` are those of all its measurements."""
    total = scales.total
    return [
        Section("measured", "What was measured", (*_measured(total, scales.uncovered), *_skipped(skipped))),
        Section("meaning", "What it means", (*_meaning(total), *_layers(scales), *_verdicts(rows))),
        Section("options", "What one might do", _options(total)),
        Section("cautions", "What not to conclude", (*_cautions(total), *_regime(rows))),
    ]


def _measured(total: NoiseScale, uncovered: Mapping[str, str]) -> list[str]:
    sentences = [
        f"The gradient noise scale B = tr Σ/|G|² of the last {total.measurements} measured steps is "
        f"{_value(total)} samples. A step has {number(total.batch_size)} samples on average.",
    ]
    if uncovered:
        sentences.append(f"{len(uncovered)} parameters are in no number here:")
        sentences += [f"{name}: {reason}." for name, reason in sorted(uncovered.items())[:8]]
    return sentences


def _skipped(skipped: Sequence[tuple[int, str]]) -> list[str]:
    if not skipped:
        return []
    step, reason = skipped[0]
    return [f"{len(skipped)} steps could not be measured; the first was step {step}: {reason}."]


def _value(scale: NoiseScale) -> str:
    if math.isnan(scale.low):
        return f"{number(scale.value)} (too few measurements for a standard error)"
    if math.isinf(scale.high):
        return f"at least {number(scale.low)} (the signal is not distinguishable from 0)"
    return f"{number(scale.value)} ± {number(scale.error)} (95 % interval {number(scale.low)} to {number(scale.high)})"


def _meaning(total: NoiseScale) -> list[str]:
    share = f"{total.noise_share:.0%} of the squared norm of a step's gradient is noise, 1/(1 + batch/B)."
    if math.isinf(total.value):
        return [share, "The batch is far below the noise scale: the gradient of a step is mostly noise."]
    return [
        share,
        f"In the model of McCandlish et al. (2018) this batch size needs {total.more_steps:.2g} times the least "
        f"possible number of steps and {total.more_samples:.2g} times the least possible number of samples to reach a "
        "loss.",
    ]


def _layers(scales: NoiseScales) -> list[str]:
    known = {name: scale for name, scale in scales.layers.items() if scale.resolved}
    if len(known) < 2:
        return []
    order = sorted(known, key=lambda name: known[name].value)
    named = lambda names: ", ".join(f"{name} ({number(known[name].value)})" for name in names)
    few = min(NAMED, len(order) // 2)
    return [
        f"Noise scales differ between layers: the least noisy are {named(order[:few])}, the noisiest "
        f"{named(order[::-1][:few])}."
    ]


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Return whether each symmetry is at the equilibrium of the optimiser, with the symmetries of a kind together."""
    by_text: dict[str, list[str]] = {}
    for verdict in verdicts(rows) if rows else ():
        by_text.setdefault(verdict.text, []).append(verdict.symmetry)
    return [f"{', '.join(names[:NAMED])}{_rest(names)}: {text}." for text, names in by_text.items()]


def _rest(names: Sequence[str]) -> str:
    return f" and {len(names) - NAMED} more" if names[NAMED:] else ""


def _options(total: NoiseScale) -> tuple[str, ...]:
    batch = total.batch_size
    if not total.resolved:
        return (
            "The noise scale is not known well enough to act on it: measure more often (a smaller `every`), average "
            "over more measurements (`window`), or train for longer.",
        )
    if batch * LARGE < total.value:
        fewer = 1 - (1 + total.value / (2 * batch)) / total.more_steps
        return (
            "The batch is small against the noise scale. Twice the batch (or gradient accumulation over 2 batches) "
            f"would take about {fewer:.0%} fewer steps at nearly the same number of samples, if the step size is tuned "
            "again.",
        )
    if batch > LARGE * total.value:
        fewer = 1 - (1 + batch / (2 * total.value)) / total.more_samples
        return (
            f"The batch is large against the noise scale. Half the batch would take about {fewer:.0%} fewer samples at "
            "nearly the same number of steps.",
        )
    return ("The batch is near the noise scale, the usual compromise between steps and samples: keep it.",)


def _regime(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return that the regime of AdamW's equilibrium is not known, where it was not measured."""
    last = rows[-1]["step"] if rows else None
    newest = [row for row in rows if row["step"] == last and row.get("memory") is not None]
    if not newest or any(row.get("regime") is not None for row in newest):
        return ()
    return (
        "The equilibrium of AdamW assumes that v changes slowly: (1 - b2)/(ηλ) below about 1, with λ the curvature in "
        "its metric. This was not measured; `monitor.measure_curvature(batches, loss)` does.",
    )


def _cautions(total: NoiseScale) -> tuple[str, ...]:
    return (
        "B is the critical batch size only for a Hessian that is a multiple of the identity. The batch size at which "
        "training slows down may differ from it by a factor of two or more.",
        "It was derived for SGD. Adam divides the gradient by its root mean square, which changes the weights of the "
        "parameters in both sums.",
        "B changes during training, mostly upwards while the loss falls. The number is an average over the window.",
        "A sample is an index of the batch: for sequences it is a whole sequence, not a token.",
        "These numbers do not predict generalisation: a noisier run may end with a better or a worse test loss.",
        f"The standard error assumes that the {total.measurements} measured steps have independent batches.",
    )

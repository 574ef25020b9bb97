"""Sentences on what to do with an analysis of a JAX problem."""

from collections.abc import Iterator

import numpy as np

from undertow.analysis.result import Analysis, Row, in_steps
from undertow.symmetry.generators import Scaling

__all__ = ["advice"]


def advice(analysis: Analysis) -> list[str]:
    """Return sentences on the symmetries, the sharpness at equilibrium, the step size and the limit after zero loss."""
    sentences = []
    if not analysis.symmetries:
        sentences.append(
            "No exponential symmetry was found: noise moves no conserved charge here (tanh, GELU, tied weights and "
            "dropout between factors break the usual ones)."
        )
    elif analysis.forecast is None:
        sentences.append(
            "The noise vanishes along the symmetries (zero loss?) and there is no weight decay, so the charges stay "
            "where they are."
        )
    for symmetry, row in zip(analysis.symmetries, analysis.rows, strict=False):
        sentences += _on_symmetry(analysis, symmetry, row)
    sentences += _on_sharpness(analysis)
    if analysis.step_size > analysis.largest_step:
        sentences.append(
            f"The step size {analysis.step_size:g} is above {analysis.largest_step:.3g}, the largest at which "
            "gradient descent is stable."
        )
    if analysis.limit:
        sentences.append(analysis.limit)
    return sentences


def _on_symmetry(analysis: Analysis, symmetry: object, row: Row) -> Iterator[str]:
    if row.infinite and isinstance(symmetry, Scaling) and analysis.weight_decay == 0:
        yield (
            f"{row.name}: the norm only grows, without bound; the effective step size falls with it. A weight decay "
            "gives it an equilibrium."
        )
    elif row.infinite:
        yield (
            f"{row.name}: {row.infinite} directions have no finite equilibrium: noise and weight decay push them one "
            "way only."
        )
    if row.dead:
        yield f"{row.name}: {row.dead} of {row.generators} have no gradient on this data (dead); left out."
    if np.isfinite(row.relaxation) and row.moved > 1.05:
        yield (
            f"{row.name}: noise is unbalanced by {row.imbalance:.0%}; SGD at step size {analysis.step_size:g} relaxes "
            f"in about {in_steps(row.relaxation)} (the median; {max(row.slowest, 1):,.0f} for the slowest), "
            f"changing weights by up to a factor {row.moved:.2g}."
        )


def _on_sharpness(analysis: Analysis) -> Iterator[str]:
    now, then = analysis.sharpness, analysis.sharpness_then
    if analysis.forecast is None or not then or analysis.largest_step_then is None:
        return
    gain = analysis.largest_step_then / analysis.largest_step
    change = "falls" if then[0] < now[0] else "rises"
    yield (
        f"At equilibrium Tr H {change} from {_with_error(*now)} to {_with_error(*then)}; the largest stable step of "
        f"gradient descent goes from {analysis.largest_step:.3g} to {analysis.largest_step_then:.3g}."
    )
    if gain > 1.2:
        yield (
            "From the equilibrium (`equilibrium(...).params`: same function, same loss) gradient descent is stable up "
            f"to a step size {gain:.1f} times as large; SGD needs a smaller one, and may still need a warm-up."
        )
    elif gain < 1 / 1.2:
        steps = max((row.relaxation for row in analysis.rows if np.isfinite(row.relaxation)), default=None)
        when = "later" if steps is None else f"after about {in_steps(steps)}"
        yield f"Noise sharpens this model: a step size that is stable now may not be stable {when}."


def _with_error(value: float, error: float) -> str:
    return f"{value:.3g} ± {error:.1g}" if error else f"{value:.3g}"

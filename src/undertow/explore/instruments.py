"""The instruments of the explorer, in the order of the page."""

from undertow.explore.averaged import AVERAGED
from undertow.explore.balance import BALANCE_OF_LAYERS
from undertow.explore.instrument import Instrument
from undertow.explore.label_noise import LABEL_NOISE
from undertow.explore.motor import MOTOR
from undertow.explore.own import own_problem
from undertow.explore.phases import PHASES

__all__ = ["instruments"]


def instruments(file: str | None = None, params: str = "params") -> dict[str, Instrument]:
    """Return all instruments by name; the last one shows the problem of FILE.py:OBJECT, or an example.

    >>> from undertow.explore.instruments import instruments
    >>> print(list(instruments()))
    ['label-noise', 'noise-equilibrium', 'phase-diagram', 'motor', 'averaged-flow', 'own-problem']
    """
    several = (LABEL_NOISE, BALANCE_OF_LAYERS, PHASES, MOTOR, AVERAGED, own_problem(file, params))
    return {instrument.name: instrument for instrument in several}

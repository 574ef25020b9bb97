"""Analyses made by hand, for tests of their text."""

import jax.numpy as jnp

from undertow.analysis.result import Analysis, Row, Sides
from undertow.estimate import Estimate
from undertow.symmetry.equilibrium import Equilibrium
from undertow.symmetry.forecast import Forecast

SIDES = Sides(noise_plus=(1.0, 4.0), noise_minus=(1.0, 0.0), weight_plus=(2.0, 1.0), weight_minus=(1.0, 3.0))


def row_of(**more) -> Row:
    """Return a row of a balanced symmetry, with the fields in `more` replaced."""
    fields = {
        "name": "rescaling of u against w", "generators": 4, "charge": 1.2345, "charge_at_equilibrium": 0.5,
        "imbalance": 0.25, "moved": 1.0, "relaxation": 1234.0, "slowest": 56789.0, "error": 0.0, "dead": 0,
        "infinite": 0, "route": "u by taps", "now": SIDES, "then": SIDES,
    }  # fmt: skip
    return Row(**fields | more)


def forecast_of(params) -> Forecast:
    """Return a forecast whose equilibrium is at `params`."""
    point = Equilibrium(params, (jnp.zeros(()),), (jnp.zeros(()),), 0.0, ((),), (0,), 1)
    zero = Estimate(jnp.zeros(()), jnp.zeros(()), 64)
    return Forecast(point, (1.0,), "slow", (zero, zero), (1.0, 1.0), (None, None))


def analysis_of(*rows: Row, **more) -> Analysis:
    """Return an analysis with these rows, with the fields in `more` replaced."""
    fields = {
        "parameters": 12345, "loss": 0.25, "step_size": 0.01, "weight_decay": 0.0, "rows": rows,
        "symmetries": tuple(object() for _ in rows), "forecast": forecast_of({"u": jnp.ones(2)}) if rows else None,
        "sharpness": (4.0, 0.1), "sharpness_then": None, "largest_step": 0.1, "largest_step_then": None,
    }  # fmt: skip
    return Analysis(**fields | more)

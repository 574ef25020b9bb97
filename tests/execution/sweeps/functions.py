"""Experiments for sweeps, as a person writes them."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def walk(key, *, step_size: float, drift: float = 0.0, steps: int = 20):
    x = step_size * jax.random.normal(key, (steps,)) + drift
    return {"end": x.sum(), "path": jnp.cumsum(x)[jnp.array([4, 9])], "high": x.max() > 1}


def picky(key, *, n: int, flavour: str = "plain", scale: float = 1.0):
    """Looks at its numbers, so that it does not trace; raises at one point, in one seed."""
    if scale > 1e9:
        raise ValueError("never")
    if n == 3 and float(jax.random.uniform(key)) >= 0:
        raise ArithmeticError("three is too many")
    return {"value": n * scale + len(flavour)}


def brittle(key, *, x: float):
    """Traces, and raises while it runs where x is large."""
    return {"value": eqx.error_if(2 * x, x > 3, "x is too large")}


def slow(key, *, x: float):
    time.sleep(0.2)
    return {"value": float(x)}


def ragged(key, *, n: int):
    return {"value": jnp.zeros(n)}


def widening(key, *, a: float):
    """Single precision at one point; a number that this cannot hold at another."""
    return {"value": np.float32(1) if float(a) < 0.5 else np.float64(1e300)}


def vector(key, *, value_0: float = 0.0, value_1: float = 0.0):
    return {"value": jnp.zeros(3) + value_0}


def vector_alone(key, *, value_0: float = 0.0, value_1: float = 0.0):
    return {"value": np.zeros(3) + float(value_0)}


def shadowed(key, *, a: float):
    return {"value": jnp.zeros(3), "value_0": a}


def empty(key, *, a: float):
    return {}


def empty_alone(key, *, a: float):
    return {} if float(a) < 9 else {"value": a}

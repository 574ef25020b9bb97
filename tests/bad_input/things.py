"""Small problems, noises and symmetries on which the bad inputs are tried."""

import functools

import jax
import jax.numpy as jnp

import undertow as ut

PARAMS = jnp.array([2.0, 0.5])
PAIR = {"u": jnp.array(2.0), "w": jnp.array(0.5)}


def square(w, x):
    return jnp.sum((w - x) ** 2) / 2


@functools.cache
def problem() -> ut.Problem:
    return ut.Problem(square, jnp.array([[0.0, 1.0], [4.0, 1.0], [1.0, 0.0]]))


@functools.cache
def product() -> ut.Problem:
    return ut.Problem(lambda p, y: (p["u"] * p["w"] - y) ** 2, jnp.array([0.0, 2.0]))


@functools.cache
def task() -> ut.Regression:
    return ut.Regression(lambda p, x: p[0] * p[1] * x, jnp.array([1.0]), jnp.array([1.0]))


@functools.cache
def population() -> ut.Population:
    return ut.Population(square, draw=lambda key: jax.random.normal(key, (2,)))


@functools.cache
def noise() -> ut.Minibatch:
    return ut.Minibatch(problem(), 1)


@functools.cache
def label_noise() -> ut.LabelNoise:
    return ut.LabelNoise(task(), 0.5)


@functools.cache
def run() -> ut.Trajectory:
    return ut.descend(noise(), PARAMS, step_size=0.1, steps=4, key=0, every=2, observe={"w": lambda w: w[0]})


def balance() -> ut.Rescaling:
    return ut.Rescaling(lambda p: p["u"], lambda p: p["w"])

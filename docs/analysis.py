"""Two networks of 100 parameters, and the figures that `undertow analyze` draws of them.

    undertow analyze docs/analysis.py:relu
    undertow analyze docs/analysis.py:fit
    python -m docs.analysis

The last command writes the figures of docs/howto/analyze.md to docs/images.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

import undertow as ut

__all__ = ["FIGURES", "fit", "relu"]

IMAGES = Path(__file__).parent / "images"
FIGURES = {"relu": ("charges", "noise", "spectrum"), "fit": ("path",)}
"""The figures of the page, by object."""


def _data(samples):
    x = jax.random.normal(jax.random.key(0), (samples, 8))
    return x, jnp.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2


def _params(scale_in, scale_out):
    first, last = jax.random.split(jax.random.key(1))
    weights = {"in": scale_in * jax.random.normal(first, (10, 8)), "out": scale_out * jax.random.normal(last, (10,))}
    return weights | {"bias": jnp.zeros(10)}


def _relu_net(p, x):
    return p["out"] @ jax.nn.relu(p["in"] @ x + p["bias"])


def _tanh_net(p, x):
    return p["out"] @ jnp.tanh(p["in"] @ x + p["bias"])


def relu():
    """Return a ReLU network on 200 samples, with incoming weights ten times as large as outgoing ones."""
    return ut.Minibatch(ut.Regression(_relu_net, *_data(200)), 8), _params(1.0, 0.1)


def fit():
    """Return a tanh network on 12 samples, which it can fit exactly."""
    return ut.Regression(_tanh_net, *_data(12)), _params(1 / 3, 1 / 3)


def main() -> None:
    """Write the figures of the page."""
    from undertow.analysis.figures import plots
    from undertow.analysis.jax import analyze
    from undertow.execution.settings import compile_fast
    from undertow.figures.export import to_svg

    compile_fast()
    for name, target in (("relu", relu), ("fit", fit)):
        for plot in plots(analyze(*target())):
            if plot.name in FIGURES[name]:
                (IMAGES / f"analyze-{plot.name}.svg").write_text(to_svg(plot.figure))


if __name__ == "__main__":
    main()

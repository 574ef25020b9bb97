"""Claims that take milliseconds, whose data, figure and numbers all show the same random mean.

Each run of one appends a line to the file named by UNDERTOW_TINY, with the driver named by UNDERTOW_DRIVER.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray

from undertow.figures import style
from undertow.verification.claim import Claim, Measurement
from undertow.verification.criterion import Check, Within


@dataclass(frozen=True)
class Size:
    """The size of a tiny experiment."""

    count: int = 8
    """The number of draws."""


def measure(name: str, parameters: Size, key) -> Measurement:
    import jax

    if "UNDERTOW_TINY" in os.environ:
        with open(os.environ["UNDERTOW_TINY"], "a") as log:
            log.write(f"{name} {os.environ.get('UNDERTOW_DRIVER')} {os.getpid()}\n")
    draws = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist()).normal(1.0, 0.01, parameters.count)
    check = Check("the mean", float(draws.mean()), 1.0, 0.01, Within(0.5, 1.0), alternative=3.0)
    return Measurement((check,), xarray.Dataset({"draws": (("seed",), draws)}), seeds=parameters.count)


def draw(measurement: Measurement, parameters: Size):
    figure, (axes,) = style.new_figure(width=2.0, height=1.5)
    axes.set_title(shown(measurement.data))
    return figure


def shown(data: xarray.Dataset) -> str:
    """Return the text of the figure of a dataset."""
    return f"{float(data.draws.values.mean())!r}"


def claim(name: str) -> Claim[Size]:
    scales = {scale: Size() for scale in ("smoke", "default", "full")}
    run = lambda parameters, key: measure(name, parameters, key)
    return Claim("A mean is 1.", run, name, "zero_loss", "nowhere", "m = 1", scales, draw, module=__name__)


CLAIMS = {name: claim(name) for name in ("tiny-one", "tiny-two", "tiny-three")}


def assert_coherent(folder: Path) -> int:
    """Check that data, figure and numbers in the folder of a claim are of one run; return its seed."""
    data = xarray.open_zarr(folder / "data.zarr").load()
    result = json.loads((folder / "result.json").read_text())
    assert result["measured"] == float(data.draws.values.mean()), f"{folder.name}: numbers and data of different runs"
    assert shown(data) in (folder / "figure.svg").read_text(), f"{folder.name}: figure and data of different runs"
    return result["seed"]

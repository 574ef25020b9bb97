"""A claim checks its scales, gives its parameters as plain values and its checks as columns."""

from dataclasses import dataclass, replace

import jax
import pytest

from undertow.verification.claim import PAPERS, SCALES, Claim, Measurement
from undertow.verification.criterion import Below, Check, Within


@dataclass(frozen=True)
class Parameters:
    """One number."""

    size: float = 1.0
    """Its size."""


def measure(parameters, key):
    checks = (
        Check("a", parameters.size, 1.0, 0.01, Within(0.1, 0.5)),
        Check("b", parameters.size, 0.0, 0.01, Below(0.5)),
    )
    return Measurement(checks, None, seeds=50)


CLAIM = Claim(
    "A statement.", measure, id="a-claim", paper=PAPERS[0], place="Eq. (1)", equation="a = b",
    scales=dict.fromkeys(SCALES, Parameters()),
)  # fmt: skip


def test_every_scale_needs_parameters():
    with pytest.raises(ValueError, match="give parameters for the scales smoke, default, full"):
        replace(CLAIM, scales={"smoke": Parameters()})


def test_parameters_are_plain_values():
    assert CLAIM.parameters("full") == {"size": 1.0}


def test_columns_have_an_entry_per_check():
    columns = CLAIM.columns(Parameters(1.02), jax.random.key(0))
    assert columns["measured"] == [1.02, 1.02]
    assert columns["predicted"] == [1.0, 0.0]
    assert columns["uncertainty"] == [0.01, 0.01]
    assert [CLAIM.VERDICTS[int(index)] for index in columns["verdict"]] == ["holds", "fails"]

"""Sentences about a run."""

import numpy as np
import pytest

from tests.torch.monitor.test_noise_scale import drawn_scales
from undertow.torch.monitor.advice import sections

pytestmark = pytest.mark.torch


def text(scales, rows=(), skipped=()):
    return {section.name: " ".join(section.sentences) for section in sections(scales, list(rows), list(skipped))}


@pytest.mark.parametrize(
    ("samples", "words"),
    [(2, "batch is small"), (20, "near the noise scale"), (200, "batch is large")],
)
def test_the_advice_depends_on_the_batch(samples, words):
    """The noise scale is 20 samples."""
    found = text(drawn_scales(np.random.default_rng(0), 400, samples=samples))
    assert words in found["options"]
    assert "isotropic" in found["cautions"] or "multiple of the identity" in found["cautions"]


def test_an_unresolved_scale_gives_no_advice():
    found = text(drawn_scales(np.random.default_rng(0), 5, signal=0.0), skipped=[(3, "one sample")])
    assert "not known well enough" in found["options"]
    assert "at least" in found["measured"]
    assert "the first was step 3: one sample" in found["measured"]


def test_verdicts_are_sentences_with_alike_symmetries_together():
    row = {"step": 0, "optimiser": "AdamW", "relaxation": 1000.0, "note": ""}
    rows = [row | {"symmetry": name, "distance": distance} for name, distance in (("a", 0.5), ("b", 0.5), ("c", 0.05))]
    meaning = sections(drawn_scales(np.random.default_rng(0), 5), rows, [])[1]
    apart = "a, b: not at AdamW's equilibrium: the distance is 0.5; theory expects about 1,600 steps."
    assert apart in meaning.sentences
    assert "c: at AdamW's equilibrium: the distance is 0.05." in meaning.sentences

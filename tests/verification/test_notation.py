"""Mathematics in plain text, set for a page: right, or left as it was."""

import html
import re

import pytest

from undertow.verification import claims
from undertow.verification.errata import errata
from undertow.verification.notation import GREEK, formula, prose

EQUATIONS = {
    "X^1/2": "X<sup>1/2</sup>",
    "Gamma_U^-1/2 L": "Γ<sub>U</sub><sup>−1/2</sup> L",
    "eta^2/2 g": "η<sup>2</sup>/2 g",  # half of a square, not a power 2/2
    "(delta^2/4)": "(δ<sup>2</sup>/4)",
    "chi^2_m": "χ<sup>2</sup><sub>m</sub>",
    "E|q|^0.1": "E|q|<sup>0.1</sup>",
    "W_i+1' W_i": "W<sub>i+1</sub>′ W<sub>i</sub>",
    "beta^(2/D)": "β<sup>2/D</sup>",
    "|W_(D-1)|": "|W<sub>D−1</sub>|",
    "P grad ln |H|_+": "P ∇ ln |H|<sub>+</sub>",
    "theta_lambda*": "θ<sub>λ</sub>*",
    "dPhi(x) -> y": "dΦ(x) → y",
    "d3L[H^+ QSP]": "d³L[H<sup>+</sup> QSP]",
    "a <= b < c": "a ≤ b &lt; c",
    "zeta theta beta": "ζ θ β",
}


@pytest.mark.parametrize("text", EQUATIONS)
def test_equations(text):
    assert formula(text) == EQUATIONS[text]


def test_words_stay_words():
    sentence = "The paper's sum of label-noise runs, the mean of them all; a gradient and a chi-square in the summary."
    assert prose(sentence) == sentence.replace("'", "’").replace("chi", "χ")
    assert prose("steps * step_size^2, lane_width") == "steps * step_size<sup>2</sup>, lane_width"


def test_every_text_of_a_claim_stays_balanced_html():
    """No text of any claim leaves a tag open, or lets one in."""
    for claim in claims.values():
        for text in (formula(claim.equation), prose(claim.statement), prose(claim.place)):
            bare = re.sub(r"<(sup|sub|code)>[^<>]*</\1>", "", text)
            assert "<" not in bare
            assert ">" not in bare
    for erratum in errata():
        assert "<" not in re.sub(r"</?(sup|sub|code)>", "", prose(erratum.printed) + prose(erratum.right))


def test_no_letter_is_lost():
    """Apart from signs that are set, the letters and numbers are those of the text."""
    superscripts = str.maketrans("²³⁴⁺⁻¹ᵀ", "234+-1T")

    def letters(text: str) -> str:
        for name, letter in GREEK.items():
            text = text.replace(letter, name) if name != "epsilon" else text
        words = re.sub(r"(?<![A-Za-z])(sum|grad|sqrt)(?![A-Za-z])", "", text.translate(superscripts))
        return re.sub(r"[^A-Za-z0-9κ]", "", words)

    for claim in claims.values():
        shown = html.unescape(re.sub(r"<[^>]*>", "", formula(claim.equation)))
        assert letters(shown) == letters(claim.equation)


def test_symbols_are_set_like_their_names():
    assert formula("Tr Σ_1² = β^(2/D) d,  X_ij → η² |θ_λ*|") == (
        "Tr Σ<sub>1</sub>² = β<sup>2/D</sup> d,  X<sub>ij</sub> → η² |θ<sub>λ</sub>*|"
    )
    assert prose("P(|q| > x) falls like x^-κ") == "P(|q| &gt; x) falls like x<sup>−κ</sup>"

"""Mathematics in plain text, set for a page: right, or left as it was."""

import html
import re
from xml.etree import ElementTree

import pytest

from undertow.verification import claims
from undertow.verification.errata import errata
from undertow.verification.notation import GREEK, formula, prose

EQUATIONS = {
    "X^1/2": "<msup><mi>X</mi><mrow><mn>1</mn><mo>/</mo><mn>2</mn></mrow></msup>",
    "eta^2/2 g": "<mfrac><msup><mi>η</mi><mn>2</mn></msup><mn>2</mn></mfrac>"  # half of a square, not a power 2/2
    '<mspace width="0.17em"></mspace><mi>g</mi>',
    "(delta^2/4)": "<mfrac><msup><mi>δ</mi><mn>2</mn></msup><mn>4</mn></mfrac>",
    "chi^2_m": "<msubsup><mi>χ</mi><mi>m</mi><mn>2</mn></msubsup>",
    "dPhi -> y": '<mi>d</mi><mi mathvariant="normal">Φ</mi><mo>→</mo><mi>y</mi>',
    "d3L": "<msup><mi>d</mi><mn>3</mn></msup><mi>L</mi>",
    "a <= b < c": "<mi>a</mi><mo>≤</mo><mi>b</mi><mo>&lt;</mo><mi>c</mi>",
    "sqrt(eta) grad L": '<msqrt><mi>η</mi></msqrt><mspace width="0.17em"></mspace>'
    '<mi mathvariant="normal">∇</mi><mspace width="0.17em"></mspace><mi>L</mi>',
    "sum_i x": '<munder><mo>∑</mo><mi>i</mi></munder><mspace width="0.17em"></mspace><mi>x</mi>',
}


@pytest.mark.parametrize("text", EQUATIONS)
def test_equations(text):
    assert formula(text) == f'<math displaystyle="true">{EQUATIONS[text]}</math>'


def test_parts_between_wide_gaps_are_elements_of_their_own():
    assert formula("x = 1,  y = 2").split("  ") == [formula("x = 1,"), formula("y = 2")]


def test_lines_can_break_at_words_outside_brackets():
    assert formula("x^2 is small for all y").split(" is small for all ") == [formula("x^2"), formula("y")]
    assert formula("x, loss at y") == f"{formula('x,')} loss at {formula('y')}"
    assert formula("for x") == f"for {formula('x')}"
    assert formula("words alone") == "words alone"
    for one in ("(x if y)", "x_(all y)", "loss - x", "a = loss", "y: test loss = 2"):
        assert formula(one).count("<math") == 1


def test_words_stay_words():
    sentence = "The paper's sum of label-noise runs, the mean of them all; a gradient and a chi-square in the summary."
    assert prose(sentence) == sentence.replace("'", "’").replace("chi", "χ")
    assert prose("steps * step_size^2, lane_width") == "steps * step_size<sup>2</sup>, lane_width"


def test_every_equation_of_a_claim_parses():
    """Every equation is well-formed MathML without a bracket, slash or script that was left as a sign."""
    for claim in claims.values():
        parsed = ElementTree.fromstring(f"<p>{formula(claim.equation)}</p>")
        signs = [element.text or "" for element in parsed.iter("mo")]
        assert not {"^", "_", "√"} & set(signs), claim.id
        for pair in ("()", "[]", "{}", "⟨⟩", "||"):
            assert signs.count(pair[0]) == signs.count(pair[1]), claim.id
        assert signs.count("|") % 2 == 0, claim.id
        assert all(element.text for element in parsed.iter() if element.tag in ("mi", "mn", "mo")), claim.id


def test_every_text_of_a_claim_stays_balanced_html():
    """No text of any claim leaves a tag open, or lets one in."""
    for claim in claims.values():
        for text in (prose(claim.statement), prose(claim.place)):
            bare = re.sub(r"<(sup|sub|code)>[^<>]*</\1>", "", text)
            assert "<" not in bare
            assert ">" not in bare
    for erratum in errata():
        assert "<" not in re.sub(r"</?(sup|sub|code)>", "", prose(erratum.printed) + prose(erratum.right))


def test_no_letter_is_lost():
    """Apart from signs that are set, the letters and numbers are those of the text."""
    superscripts = str.maketrans("²³⁴⁺⁻¹ᵀ⊤₂", "234+-1TT2")

    def letters(text: str) -> str:
        for name, letter in GREEK.items():
            text = text.replace(letter, name) if name != "epsilon" else text
        words = re.sub(r"(?<![A-Za-z])(sum|grad|sqrt|prod)(?![A-Za-z])", "", text.translate(superscripts))
        return re.sub(r"[^A-Za-z0-9κ]", "", words)

    for claim in claims.values():
        shown = html.unescape(re.sub(r"<[^>]*>", "", formula(claim.equation)))
        assert sorted(letters(shown)) == sorted(letters(claim.equation))


def test_symbols_are_set_like_their_names():
    assert formula("Tr Σ_1² = β^(2/D) d,  X_ij → η² |θ_λ*|") == formula(
        "Tr Sigma_1^2 = beta^(2/D) d,  X_ij -> eta^2 |theta_lambda*|"
    )
    assert prose("P(|q| > x) falls like x^-κ") == "P(|q| &gt; x) falls like x<sup>−κ</sup>"


def test_signs_and_parentheses_inside_scripts():
    assert prose("p^-1.5 L") == "p<sup>−1.5</sup> L"
    assert prose("b^((D-2)/2D) x") == "b<sup>(D−2)/2D</sup> x"
    assert prose("A_+ or A_- here") == "A<sub>+</sub> or A<sub>−</sub> here"
    assert prose("-4γ") == "−4γ"

"""Plain-text mathematics as MathML: known trees, no text that breaks out, no text that fails."""

import random
from xml.etree import ElementTree

import pytest

from undertow.figures.mathml import math

SPACE = "\u00a0"
ELEMENTS = {"math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "msub", "msup", "msubsup",
            "munder", "mover", "munderover"}  # fmt: skip

# mathematics: its tree, where a leaf is its text
TREES = {
    "x": "x",
    "x_i^2/2": "(mfrac (msubsup x i 2) 2)",
    "η²/2 G U": "(mfrac (msup η 2) 2) G U",
    "2 E s/(M² - E s²)": "(mfrac (mrow 2 E s) (mrow (msup M 2) − E (msup s 2)))",
    "a/b/c": "(mfrac (mfrac a b) c)",
    "c Tr[ΣA]/S": "(mfrac (mrow c Tr (mrow [ Σ A ])) S)",
    "W'/Tr Σ_x": "(mfrac (mrow W ′) (mrow Tr (msub Σ x)))",
    "∑_i z_ij²/2": "(munder ∑ i) (mfrac (msubsup z (mrow i j) 2) 2)",
    "√(r1 r2/d)": "(msqrt (mfrac (mrow (msub r 1) (msub r 2)) d))",
    "√φ + 1": "(msqrt φ) + 1",
    "X^1/2 b": "(msup X (mrow 1 / 2)) b",
    "Γ_U^-1/2": "(msubsup Γ U (mrow − 1 / 2))",
    "X_{t+1}^(2/3)": "(msubsup X (mrow t + 1) (mrow 2 / 3))",
    "W_i+1'": "(mrow (msub W (mrow i + 1)) ′)",
    "λ_min": "(msub λ min)",
    "b₂ H⁺ L_H⁻¹": "(msub b 2) (msup H +) (msubsup L H (mrow − 1))",
    "|θ_λ*|² < 3": "(msup (mrow | (msubsup θ λ ∗) |) 2) < 3",
    "<X, A*> > 0": "(mrow ⟨ X , (msup A ∗) ⟩) > 0",
    "(η/2) tr(f'' X)": "(mfrac η 2) tr (mrow ( (mrow f ′′) X ))",
    "φ(η/2)": "φ (mrow ( (mfrac η 2) ))",
    "q+ = -q": "(msup q +) = − q",
    "UU' → A*  against  x.y": "U (mrow U ′) → (msup A ∗) (mtext against) x ⋅ y",
    "d angle/dt at a point": "d (mtext angle) / d t (mtext at a point)",
    "dv/d slow_time": "d v / d (mtext slow_time)",
    "step_size a_b": "(mtext step_size) (msub a b)",
    "a <= b -> c": "a ≤ b → c",
}


def tree(element: ElementTree.Element) -> str:
    if element.tag == "mspace":
        return ""
    if element.tag == "mtext":
        return f"(mtext {(element.text or '').replace(SPACE, ' ').strip()})"
    if not len(element):
        return element.text or "()"
    inside = " ".join(filter(None, map(tree, element)))
    return inside if element.tag == "math" else f"({element.tag} {inside})"


@pytest.mark.parametrize("text", TREES)
def test_trees(text):
    assert tree(ElementTree.fromstring(math(text))) == TREES[text]


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", 'a_<b onclick="x"> & c', "</math><img src=x>", "x^</mi>", "√<b>", "_'\"&#60;"]
)
def test_hostile_text_is_text(text):
    parsed = ElementTree.fromstring(math(text))
    assert {element.tag for element in parsed.iter()} <= ELEMENTS
    assert not {name for element in parsed.iter() for name in element.attrib if name.startswith("on")}


def test_any_text_gives_balanced_elements():
    """Random text from the signs of the notation, with brackets that do not close, always parses."""
    draw = random.Random(0)
    signs = [*"xE2η∑√∇|()[]{}<>/^_'*+-=,.² ", "sum", "word", "a ", "Tr", "b1", "...", "->"]
    for _ in range(1500):
        text = "".join(draw.choices(signs, k=draw.randrange(1, 12)))
        parsed = ElementTree.fromstring(math(text))
        assert {element.tag for element in parsed.iter()} <= ELEMENTS
        for element in parsed.iter():
            assert {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3}.get(element.tag, len(element)) == len(element), text


def test_deep_and_long_text_ends():
    for text in ("(" * 900, "^(" * 900, "√(" * 900, "|" * 901, "x/" * 900):
        ElementTree.fromstring(math(text))

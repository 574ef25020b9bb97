"""Typeset the plain-text mathematics of claims: equations as MathML, sentences as HTML with letters and scripts."""

import html
import re
from functools import lru_cache

from undertow.figures.mathml import SPACE, math

__all__ = ["formula", "prose"]

GREEK: dict[str, str] = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ",
    "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip

LETTERS = re.compile(rf"(?<![A-Za-z])(d?)({'|'.join(sorted(GREEK, key=len, reverse=True))})(?![A-Za-z])")
SIGNS = {"sum": "∑", "prod": "∏", "sqrt": "√", "grad": "∇"}
SCRIPT = re.compile(
    r"(\^|(?<![A-Za-z]{4})_)"
    r"(?:\(((?:[^()]|\([^()]*\))*)\)|(-?1/\d+|-?\d+\.\d+|[ijk]\+1|-?[A-Za-zα-ωΑ-Ω0-9]+|[+*-]))"
)
"""A superscript or subscript: a part in parentheses, a root (1/2), a number, i+1, a word, a plus, a star, a minus.
After four or more letters an underscore is part of a name, such as step_size."""


@lru_cache(maxsize=4096)
def formula(text: str) -> str:
    """Return an equation as HTML with MathML: one element for each part between words or wide gaps.

    Browsers break lines between elements, not inside them.

    >>> from undertow.verification.notation import formula
    >>> formula("s_j >= 1/2")
    '<math displaystyle="true"><msub><mi>s</mi><mi>j</mi></msub><mo>≥</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></math>'
    >>> formula("x for all y").replace(' displaystyle="true"', "")
    '<math><mi>x</mi></math> for all <math><mi>y</mi></math>'
    """
    text = re.sub(r"\bd([23])(?=Phi|Φ|L)", lambda m: "d²" if m[1] == "2" else "d³", text)
    for name, sign in SIGNS.items():
        text = re.sub(rf"(?<![A-Za-z]){name}(?![A-Za-z])", sign, text)
    text = LETTERS.sub(lambda m: m[1] + GREEK[m[2]], text)
    return "  ".join(_outer_words(math(part)) for part in re.split(r"(?<=[,;:])\s{2,}", text.strip()) if part)


def _outer_words(element: str) -> str:
    """Return MathML with its words as text outside the element; words in brackets, in scripts or at a sign stay."""
    opening, *parts, closing = re.split(r"(?=<)", element)[1:]
    depth, taken, out = 0, False, []
    for k, part in enumerate(parts):
        words = part.removeprefix("<mtext>")
        apart = (k == 0 or words.startswith(SPACE)) and (k == len(parts) - 2 or words.endswith(SPACE))
        if depth == 0 and words != part and apart:
            out.append(closing + words.replace(SPACE, " "))
            taken = True
        elif taken:  # the end of the words
            out.append(opening)
            taken = False
        else:
            out.append(part)
            depth += -1 if part.startswith("</") else 1
    return "".join([opening, *out, closing]).replace(opening + closing, "")


@lru_cache(maxsize=4096)
def prose(text: str) -> str:
    """Return a sentence with mathematics as HTML: Greek letters, signs and scripts are typeset, words stay words.

    >>> from undertow.verification.notation import prose
    >>> prose("The paper's sum over eta steps, |theta|^2 < sigma^2 Tr[Sigma_x], see `verify`")
    'The paper’s sum over η steps, |θ|<sup>2</sup> &lt; σ<sup>2</sup> Tr[Σ<sub>x</sub>], see <code>verify</code>'
    >>> prose("step_size at most 2e-05").replace("\u00a0", " ")
    'step_size at most 2 × 10<sup>−5</sup>'
    """
    text = _signs(re.sub(r"(?<=[a-z]{2})'(?=s\b)", "’", html.escape(text, quote=False)))
    text = re.sub(r"(?<![^\s(\[])-(?=[\s\w(∇√])", "−", text).replace(" − ", "\u00a0−\u00a0")
    text = re.sub(r"(?<=\d)e([+-])0*(\d+)\b", lambda m: f"\u00a0×\u00a010^{m[1].strip('+')}{m[2]}", text)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _scripts(_greek(text)))


def _signs(text: str) -> str:
    text = text.replace("&lt;=", "≤").replace("&gt;=", "≥").replace(" &lt;- ", " ← ")
    return re.sub(r"(?<![A-Za-z])sqrt(?=\()", "√", re.sub(r"(?<![A-Za-z])grad(?![A-Za-z])", "∇", text))


def _greek(text: str) -> str:
    return LETTERS.sub(lambda m: m[1] + GREEK[m[2]], text).replace("'", "′")


def _scripts(text: str) -> str:
    def script(match: re.Match) -> str:
        tag = "sup" if match[1] == "^" else "sub"
        return f"<{tag}>{(match[2] if match[2] is not None else match[3]).replace('-', '−')}</{tag}>"

    return SCRIPT.sub(script, text)

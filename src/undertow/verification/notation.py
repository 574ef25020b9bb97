"""Typeset the plain-text mathematics of claims: equations as MathML, sentences as HTML with letters and scripts."""

import html
import re
from functools import lru_cache

from undertow.figures.mathml import math

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
    """Return an equation as HTML with MathML: one element for each part between wide gaps, so that lines can break.

    >>> from undertow.verification.notation import formula
    >>> formula("s_j >= 1/2")
    '<math displaystyle="true"><msub><mi>s</mi><mi>j</mi></msub><mo>≥</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></math>'
    """
    text = re.sub(r"\bd([23])(?=Phi|Φ|L)", lambda m: "d²" if m[1] == "2" else "d³", text)
    for name, sign in SIGNS.items():
        text = re.sub(rf"(?<![A-Za-z]){name}(?![A-Za-z])", sign, text)
    text = LETTERS.sub(lambda m: m[1] + GREEK[m[2]], text)
    return "  ".join(math(part) for part in re.split(r"(?<=[,;:])\s{2,}", text.strip()) if part)


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

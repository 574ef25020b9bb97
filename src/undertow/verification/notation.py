"""Typeset the plain-text mathematics of claims as HTML: Greek letters, superscripts, subscripts, signs."""

import html
import re
from functools import lru_cache

__all__ = ["formula", "prose"]

GREEK: dict[str, str] = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eps": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ",
    "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ",
    "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip

LETTERS = re.compile(rf"(?<![A-Za-z])(d?)({'|'.join(sorted(GREEK, key=len, reverse=True))})(?![A-Za-z])")
SCRIPT = re.compile(r"(\^|(?<![A-Za-z]{4})_)(?:\(([^()]*)\)|(-?1/\d+|\d+\.\d+|[ijk]\+1|-?[A-Za-zα-ωΑ-Ω0-9]+|[+*]))")
"""A superscript or subscript: a part in parentheses, a root (1/2), a number, i+1, a word, a plus, a star.
After four or more letters an underscore is part of a name, such as step_size."""


@lru_cache(maxsize=4096)
def formula(text: str) -> str:
    """Return an equation as HTML.

    >>> from undertow.verification.notation import formula
    >>> formula("d2Phi[S] = -H^+ S,  s_j >= (4/n) sum_i z_ij^2/2")
    'd²Φ[S] = −H<sup>+</sup> S,  s<sub>j</sub> ≥ (4/n) ∑<sub>i</sub> z<sub>ij</sub><sup>2</sup>/2'
    """
    text = _signs(html.escape(text, quote=False))
    text = re.sub(r"\bd([23])(?=Phi|L)", lambda m: "d²" if m[1] == "2" else "d³", text)
    text = re.sub(r"(?<![A-Za-z])sum(?![A-Za-z])", "∑", text).replace("-&gt;", "→")
    return _scripts(re.sub(r"(?<![A-Za-z])-|-(?![A-Za-z])", "−", _greek(text)).replace("^−", "^-"))


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
    text = re.sub(r"(?<=[\s(\[])-(?=[\s\w(∇√])", "−", text).replace(" − ", "\u00a0−\u00a0")
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

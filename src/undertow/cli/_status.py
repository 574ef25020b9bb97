"""Exit statuses, how a command reports a mistake of the user, and output on terminals that know ASCII only."""

import codecs
import io
import sys

__all__ = ["INTERRUPTED", "MISTAKE", "SUCCESS", "SURPRISE", "complain", "degrade_output"]

SUCCESS, SURPRISE, MISTAKE, INTERRUPTED = 0, 1, 2, 130

ASCII = {
    "±": "+-", "–": "-", "−": "-", "×": "x", "·": ".", "…": "...", "≤": "<=", "≥": ">=", "→": "->", "’": "'", "‘": "'",
    "“": '"', "”": '"', "²": "^2", "³": "^3", "√": "sqrt", "∞": "inf", "\u00a0": " ", "η": "eta", "θ": "theta",
    "λ": "lambda", "σ": "sigma", "β": "beta", "τ": "tau",
}  # fmt: skip
"""What an encoding without a character shows instead; a question mark for all others."""


def complain(message: str) -> int:
    """Print an error message and return the exit status."""
    print(f"undertow: {message}", file=sys.stderr)
    return MISTAKE


def degrade_output() -> None:
    """Replace characters that the encoding of the terminal does not have, instead of raising an error."""
    codecs.register_error("undertow", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="undertow")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(ASCII.get(letter, "?") for letter in wrong), error.end

"""Exit statuses, error messages for mistakes of the user, and output on terminals that show only ASCII."""

import codecs
import contextlib
import io
import re
import sys
from collections.abc import Callable
from typing import TypeVar

__all__ = ["INTERRUPTED", "MISTAKE", "SUCCESS", "SURPRISE", "complain", "degrade_output", "parsed"]

T = TypeVar("T")
NUMBERS = {
    r"invalid literal for int\(\)[^:]*: '([^']*)'": "a whole number",
    r"could not convert string to float: '([^']*)'": "a number",
    r"no type matching \{None\}\|INT could be instantiated from \['([^']*)'\]": "a whole number",
}
"""The messages of the parser for text that is not a number, and what to give instead."""

SUCCESS, SURPRISE, MISTAKE, INTERRUPTED = 0, 1, 2, 130

ASCII = {
    "±": "+-", "–": "-", "−": "-", "×": "x", "·": ".", "…": "...", "≤": "<=", "≥": ">=", "→": "->", "’": "'", "‘": "'",
    "“": '"', "”": '"', "²": "^2", "³": "^3", "√": "sqrt", "∞": "inf", "\u00a0": " ", "η": "eta", "θ": "theta",
    "λ": "lambda", "σ": "sigma", "β": "beta", "τ": "tau",
}  # fmt: skip
"""Replacements for characters that an encoding lacks; all others become a question mark."""


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


def parsed(parse: Callable[[], T]) -> T:
    """Return the arguments that `parse` reads; a text in the place of a number is reported in a sentence."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            return parse()
    except SystemExit as ended:
        text = " ".join(re.sub("[╭╮╰╯─│]", " ", message.getvalue()).split())
        for words, wanted in NUMBERS.items():
            found = re.search(rf"Error parsing (--[\w-]+): {words}", text)
            if found:
                raise SystemExit(complain(f"{found[1]} {found[2]!r}: give {wanted}.")) from None
        unknown = re.search(r"Unrecognized options: (\S+)[\s|+-]+Perhaps you meant:[\s|+]+(--[\w-]+)", text)
        if unknown:
            raise SystemExit(complain(f"there is no option {unknown[1]}; perhaps you meant {unknown[2]}.")) from None
        print(message.getvalue(), end="", file=sys.stderr)
        raise ended from None

"""Typeset plain-text mathematics and docstrings as Markdown, with special characters escaped."""

import inspect
import re

from undertow.verification.notation import formula, prose

__all__ = ["docstring", "equation", "set_equations", "words"]

SPECIAL = {"*": "&#42;", "_": "&#95;", "[": "&#91;", "]": "&#93;", "`": "&#96;", "|": "&#124;"}


def words(text: str) -> str:
    """Return a sentence as Markdown: letters, signs and scripts are typeset, code and **bold** are kept."""
    parts = re.split(r"(`[^`]*`|\*\*[^*]+\*\*)", text)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part.startswith("`"):
        return f"<code>{_plain(part[1:-1].replace('&', '&amp;').replace('<', '&lt;'))}</code>"
    if part.startswith("**"):
        return f"**{_plain(prose(part[2:-2]))}**"
    return _plain(prose(part).replace("+-", "±").replace("-&gt;", "→"))


def _plain(text: str) -> str:
    """Return text with Markdown's special characters escaped."""
    return re.sub(r"[*_\[\]`|]", lambda m: SPECIAL[m[0]], text)


def equation(text: str) -> str:
    """Return lines of mathematics as one displayed element."""
    lines = "\n".join(formula(line) for line in text.strip("\n").splitlines())
    return f'<div class="equation">{lines}</div>'


def set_equations(markdown: str) -> str:
    """Return a page with every block of the language `equation` as displayed mathematics."""
    return re.sub(r"^```equation\n(.*?)^```$", lambda m: equation(m[1]), markdown, flags=re.DOTALL | re.MULTILINE)


def docstring(text: str) -> str:
    """Return a docstring as Markdown: examples become code, indented lines become equations, lists are kept."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", inspect.cleandoc(text)) if block.strip())


def _block(block: str) -> str:
    if block.startswith(">>> "):
        return f"```pycon\n{block}\n```"
    if block.startswith("    "):
        return equation(inspect.cleandoc(block))
    if re.match(r"- ", block):
        items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "\n".join(f"- {words(' '.join(item.split()))}" for item in items)
    return words(block)

"""Our plain-text mathematics and docstrings, set as Markdown that nothing on the way to the page takes apart."""

import inspect
import re

from undertow.verification.notation import formula, prose

__all__ = ["docstring", "equation", "set_equations", "words"]

SPECIAL = {"*": "&#42;", "_": "&#95;", "[": "&#91;", "]": "&#93;", "`": "&#96;", "|": "&#124;"}


def words(text: str) -> str:
    """A sentence with mathematics and `code` in it: letters, signs and scripts are set, code and **bold** stay."""
    parts = re.split(r"(`[^`]*`|\*\*[^*]+\*\*)", text)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part.startswith("`"):
        return f"<code>{_plain(part[1:-1].replace('&', '&amp;').replace('<', '&lt;'))}</code>"
    if part.startswith("**"):
        return f"**{_plain(prose(part[2:-2]))}**"
    return _plain(prose(part).replace("+-", "±").replace("-&gt;", "→"))


def _plain(text: str) -> str:
    """Text whose stars, underscores and brackets mean themselves."""
    return re.sub(r"[*_\[\]`|]", lambda m: SPECIAL[m[0]], text)


def equation(text: str) -> str:
    """Lines of mathematics as one displayed element."""
    lines = "\n".join(formula(line) for line in text.strip("\n").splitlines())
    return f'<div class="equation" role="math">{lines}</div>'


def set_equations(markdown: str) -> str:
    """A page in which every block of the language `equation` is displayed mathematics."""
    return re.sub(r"^```equation\n(.*?)^```$", lambda m: equation(m[1]), markdown, flags=re.DOTALL | re.MULTILINE)


def docstring(text: str) -> str:
    """A docstring as Markdown: examples become code, indented lines equations, lists stay lists."""
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

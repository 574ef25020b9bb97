"""Parse plain-text mathematics and write it as MathML, which browsers draw without a script.

Tokens become items: symbols, functions, operators, groups in brackets, words. Scripts belong to the item before them. A
slash becomes a fraction. Text that does not parse, such as an unbalanced bracket, is written as it is.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

__all__ = ["SPACE", "math"]

TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+(?:\.\d+)?|\.\d+|[½¼])|(?P<name>[A-Za-z]{2,}(?:[-_][A-Za-z]{2,})+)|(?P<word>[A-Za-z]+)"
    r"|(?P<letter>[α-ωΑ-Ω])|(?P<up>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ]+)|(?P<down>[₀₁₂₃₄₅₆₇₈₉₊₋]+)|(?P<prime>['′]+)|(?P<dots>\.\.\.)"
    r"|(?P<relation>->|<-(?=\s)|<=|>=|<<|>>|\+-|[=≤≥→←≈∝~±]|(?<=\s)[<>](?=\s))|(?P<big>[∑∏])|(?P<other>.)",
    re.DOTALL,
)
SCRIPT = re.compile(r"-?1/\d+|-?\d+\.\d+|[ijkt]\+1|-?[A-Za-z]+|-?[α-ωΑ-Ω]|-?\d+|[+*½-]")
"""A script without brackets: a root (1/2), a number, i+1, a word, a letter, a plus, a star, a minus."""

NEXT = re.compile(r"\+(?=\s+=|[|)]|$)")
"""The sign of a value after one step: theta+ = theta - eta g."""
ARTICLE = re.compile(r"a\s+[a-z]{3}")
RELATIONS = {"->": "→", "<-": "←", "<=": "≤", ">=": "≥", "<<": "≪", ">>": "≫", "+-": "±", "~": "∼"}
SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+−⊤0123456789+−")
CLOSING = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "|": "|"}
FUNCTIONS = frozenset((
    "E", "Tr", "tr", "Var", "var", "Cov", "cov", "log", "ln", "exp", "min", "max", "argmin", "diag", "eig", "dist",
    "sin", "cos", "tanh", "sign",
))  # fmt: skip
WORDS = frozenset((
    "all", "an", "and", "any", "are", "at", "by", "for", "in", "if", "is", "no", "not", "of", "on", "one", "or", "per",
    "the", "to", "GD", "SDE", "SGD",
))  # fmt: skip
"""Words of two or three letters that are words; others are products of letters. Longer ones are always words."""

DEEPEST = 40
"""Brackets inside more brackets than this are written as they are."""
SIGN = re.compile("<mo[^>]*>[^,;:<]+</mo>$")
"""A sign that has space of its own around it."""
TALL = re.compile("<(?:mfrac|munder|mover)")
"""What brackets grow with."""
SPACE = "\u00a0"
"""The space at the words of a formula."""

Kind = Literal["atom", "group", "function", "operator", "big", "slash", "text"]


@dataclass(frozen=True)
class Item:
    """One item of a row."""

    kind: Kind
    xml: str
    spaced: bool = False
    """Whether white space comes before it."""
    inner: str = ""
    """For a group in parentheses without scripts: what is inside them."""
    fraction: bool = False
    """For such a group: whether a fraction is all that is inside."""


DIFFERENTIAL = Item("atom", "<mi>d</mi>")


def math(text: str) -> str:
    """Return plain-text mathematics, with Greek letters as letters, as one MathML element.

    >>> from undertow.figures.mathml import math
    >>> math("x_i^2/2")
    '<math displaystyle="true"><mfrac><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup><mn>2</mn></mfrac></math>'
    """
    return f'<math displaystyle="true">{_Parser(text).row()}</math>'


class _Parser:
    """A recursive parser over the characters of one text."""

    def __init__(self, text: str) -> None:
        self.text, self.place, self.depth, self.script = text, 0, 0, False

    def row(self) -> str:
        return _row(list(self._items("")), fractions=True)

    def _items(self, until: str) -> Iterator[Item]:
        """Yield the items up to the bracket `until`, or to the end of the text."""
        spaced, last = False, None
        while self.place < len(self.text) and not self._at(until):
            token = TOKEN.match(self.text, self.place)
            assert token is not None  # the last alternative matches any character
            kind, text = str(token.lastgroup), token[0]
            self.place = token.end()
            if kind == "space":
                spaced = True
                continue
            if text == "a" and last is not None and last.kind == "text" and ARTICLE.match(self.text, token.start()):
                kind = "name"
            for number, item in enumerate(self._item(kind, text, last)):
                last = replace(item, spaced=spaced and number == 0)
                yield last
            spaced = False

    def _at(self, until: str) -> bool:
        """Return whether the group ends here; `>` and `⟩` both close an angle."""
        return bool(until) and (self.text[self.place] == until or (until == "⟩" and self._angle(">")))

    def _angle(self, sign: str) -> bool:
        """Return whether the sign at this place is a bracket: no space stands on its inner side."""
        inner = self.place - 1 if sign == ">" else self.place + 1
        return self.text[self.place] == sign and 0 <= inner < len(self.text) and not self.text[inner].isspace()

    def _item(self, kind: str, text: str, last: Item | None) -> list[Item]:
        starts = last is None or last.kind in ("operator", "slash", "big")
        if kind == "word":
            return self._word(text)
        if kind == "number":
            return [self._scripts("atom", f"<mn>{text}</mn>")]
        if kind == "letter":
            return [self._scripts("atom", _letter(text))]
        if kind == "big":
            return [self._scripts("big", f"<mo>{text}</mo>")]
        if kind == "name":
            return [Item("text", text)]
        if kind == "dots":
            return [Item("atom", "<mo>…</mo>")]
        if kind == "relation":
            return [Item("operator", f"<mo>{_escape(RELATIONS.get(text, text))}</mo>")]
        self.place -= len(text)
        bracket = "⟨" if text == "<" and self._angle("<") else text
        if bracket in CLOSING and self.depth < DEEPEST:
            return self._group(bracket)
        item = self._scripts("atom", "<mrow></mrow>")  # a script of nothing
        if item.xml != "<mrow></mrow>":
            return [item]
        self.place += 1
        if text in "√∇":
            return self._prefix(text)
        if text in "-−":
            form = ' form="prefix"' if starts else ""
            return [Item("operator", f"<mo{form}>−</mo>")]
        if text in "+,;:":
            return [Item("operator", f"<mo>{text}</mo>")]
        if text == "/":
            return [Item("slash", '<mo lspace="0" rspace="0">/</mo>')]
        if text in "*.":
            return [Item("operator", "<mo>⋅</mo>")]
        return [Item("atom", f"<mo>{_escape(text)}</mo>")]

    def _prefix(self, sign: str) -> list[Item]:
        """Return a root with what it covers, or the sign of a gradient."""
        if sign == "∇":
            return [self._scripts("atom", '<mi mathvariant="normal">∇</mi>')]
        if self.text[self.place : self.place + 1] == "(" and self.depth < DEEPEST:
            inner, closed = self._inside("(")
            return [self._scripts("atom", f"<msqrt>{inner if closed else '<mo>(</mo>' + inner}</msqrt>")]
        token = TOKEN.match(self.text, self.place)
        if token is None or token.lastgroup not in ("number", "word", "letter"):
            return [Item("atom", "<mo>√</mo>")]
        self.place += 1 if token.lastgroup == "word" else len(token[0])
        base = f"<mn>{token[0]}</mn>" if token.lastgroup == "number" else _letter(token[0][0])
        covered = self._scripts("atom", base)
        return [Item("atom", f"<msqrt>{covered.xml}</msqrt>")]

    def _word(self, text: str) -> list[Item]:
        if text in FUNCTIONS:
            variant = ' mathvariant="normal"' if len(text) == 1 else ""
            return [self._scripts("function", f"<mi{variant}>{text}</mi>")]
        if text in WORDS or len(text) > 3:
            return [Item("text", text)]
        letters = [Item("atom", f"<mi>{letter}</mi>") for letter in text]
        return [*letters[:-1], self._scripts("atom", letters[-1].xml)]

    def _group(self, opening: str) -> list[Item]:
        """Return what is inside a pair of brackets; without a closing one, the opening one and the rest of the text."""
        inner, closed = self._inside(opening)
        if not closed:
            return [Item("atom", f'<mrow><mo stretchy="false">{opening}</mo>{inner}</mrow>')]
        fixed = "" if TALL.search(inner) else ' stretchy="false"'
        xml = f"<mrow><mo{fixed}>{opening}</mo>{inner}<mo{fixed}>{CLOSING[opening]}</mo></mrow>"
        item = self._scripts("group", xml)
        if opening != "(" or item.xml != xml:
            return [item]
        alone = inner.count("<mfrac>") == 1 and inner.startswith("<mfrac>") and inner.endswith("</mfrac>")
        return [replace(item, inner=inner, fraction=alone)]

    def _inside(self, opening: str) -> tuple[str, bool]:
        """Return the row after an opening bracket, and whether the bracket is closed."""
        self.place += 1
        self.depth += 1
        inner = _row(list(self._items(CLOSING[opening])), fractions=not self.script)
        self.depth -= 1
        closed = self.place < len(self.text)
        self.place += closed
        return inner, closed

    def _scripts(self, kind: Kind, base: str) -> Item:
        """Return an item with the scripts that follow it."""
        lower: list[str] = []
        upper: list[str] = []
        primes = ""
        letter = re.fullmatch("<mi[^>]*>[^E]</mi>", base)
        while token := TOKEN.match(self.text, self.place):
            after = self.text[token.end() : token.end() + 1]
            if token.lastgroup == "up":
                upper.append(_plain(token[0].translate(SMALL)))
            elif token.lastgroup == "down":
                lower.append(_plain(token[0].translate(SMALL)))
            elif token.lastgroup == "prime":
                primes += "′" * len(token[0])
            elif token.lastgroup == "number" and letter and not lower and not upper and "." not in token[0]:
                lower.append(f"<mn>{token[0]}</mn>")  # b1 is b with the index 1
            elif token[0] == "*" and not base.startswith("<mn>"):
                upper.append("<mo>∗</mo>")
            elif token[0] == "+" and NEXT.match(self.text, self.place):
                upper.append("<mo>+</mo>")
            elif token[0] in "^_" and after and not after.isspace():
                self.place = token.end()
                (upper if token[0] == "^" else lower).append(self._script())
                continue
            else:
                break
            self.place = token.end()
        xml = _with_scripts(base, "".join(lower), "".join(upper), under=kind == "big")
        # fonts draw a prime at its height already
        return Item(
            kind, f'<mrow>{xml}<mo form="postfix" lspace="0" rspace="0">{primes}</mo></mrow>' if primes else xml
        )

    def _script(self) -> str:
        """Return the script that starts here: a part in brackets, or one word or number."""
        opening = self.text[self.place]
        if opening in "({" and self.depth < DEEPEST:
            outside, self.script = self.script, True
            inner, _ = self._inside(opening)
            self.script = outside
            return inner
        match = SCRIPT.match(self.text, self.place)
        script = match[0] if match else opening
        self.place += len(script)
        return _plain(script)


def _letter(letter: str) -> str:
    """Return a letter: Greek capitals are upright, all others slanted."""
    return f'<mi mathvariant="normal">{letter}</mi>' if "Α" <= letter <= "Ω" else f"<mi>{letter}</mi>"


def _plain(text: str) -> str:
    """Return a script without brackets: words are names, two letters are two indices."""
    names = {"plus": "<mo>+</mo>", "minus": "<mo>−</mo>"}
    parts = []
    for part in re.findall(r"[A-Za-z]+|\d+(?:\.\d+)?|.", text):
        if part in names:
            parts.append(names[part])
        elif part.isascii() and part.isalpha():
            parts += [f"<mi>{part}</mi>"] if len(part) > 2 else [f"<mi>{letter}</mi>" for letter in part]
        elif part[0].isdigit():
            parts.append(f"<mn>{part}</mn>")
        elif part.isalpha():
            parts.append(_letter(part))
        else:
            parts.append(f"<mo>{_escape({'-': '−', '*': '∗'}.get(part, part))}</mo>")
    return "".join(parts)


def _with_scripts(base: str, lower: str, upper: str, *, under: bool) -> str:
    below, above = ("munder", "mover") if under else ("msub", "msup")
    both = "munderover" if under else "msubsup"
    if lower and upper:
        return f"<{both}>{base}{_one(lower)}{_one(upper)}</{both}>"
    if lower or upper:
        tag = below if lower else above
        return f"<{tag}>{base}{_one(lower or upper)}</{tag}>"
    return base


def _one(xml: str) -> str:
    """Return one element: a row where there are several."""
    return xml if re.fullmatch(r"<(m[ino])[^>]*>[^<]*</\1>", xml) else f"<mrow>{xml}</mrow>"


def _row(items: list[Item], *, fractions: bool) -> str:
    """Return items as elements of a row, with fractions, words and spaces."""
    if fractions:
        items = _divide(items)
    parts: list[str] = []
    for k, item in enumerate(items):
        before = items[k - 1] if k else None
        joined = before is not None and item.spaced and before.kind == "text" and item.kind != "operator"
        if joined:
            parts[-1] = f"{parts[-1].removesuffix('</mtext>')}{SPACE}</mtext>"
        if item.kind == "text":
            if before is not None and before.kind == "text":
                parts[-1] = f"{parts[-1].removesuffix('</mtext>')}{_escape(item.xml)}</mtext>"
            else:
                lead = SPACE if before is not None and item.spaced and not SIGN.search(before.xml) else ""
                parts.append(f"<mtext>{lead}{_escape(item.xml)}</mtext>")
            continue
        apart = before is not None and item.spaced and not {item.kind, before.kind} & {"operator", "text", "slash"}
        if apart or (before is not None and before.kind == "function" and item.kind == "atom"):
            parts.append('<mspace width="0.17em"></mspace>')
        bare = item.fraction and (before is None or item.spaced or before.kind in ("operator", "big"))
        parts.append(
            item.inner
            if bare
            else item.xml.replace('"0"', '"0.25em"')
            if item.kind == "slash" and item.spaced
            else item.xml
        )
    return "".join(parts)


def _divide(items: list[Item]) -> list[Item]:
    """Return the items with fractions in place of slashes, term by term: signs and words separate the terms."""
    terms: list[list[Item]] = [[]]
    for item in items:
        if item.kind in ("operator", "text"):
            terms += [[item], []]
        else:
            terms[-1].append(item)
    words = [bool(term) and term[0].kind == "text" for term in [*terms[1:], []]]
    return [item for term, word in zip(terms, words, strict=True) for item in _divide_term(term, before_word=word)]


def _divide_term(term: list[Item], *, before_word: bool) -> list[Item]:
    """Return a product with fractions in place of slashes.

    The numerator of the last fraction of a product is all that comes before it: 2 E s/(1 + s). Where factors follow,
    as in eta/2 G U, it is what stands before the slash without a space.
    """
    done = 0
    for _ in range(DEEPEST):
        k = next((k for k in range(done, len(term)) if term[k].kind == "slash"), None)
        if k is None:
            break
        end = _end_of_denominator(term, k + 1)
        if k == done or end == k + 1 or (before_word and term[k + 1 :] == [DIFFERENTIAL]):
            done = k + 1  # nothing to divide, nothing to divide by, or the differential of a word
            continue
        last = end == len(term) or term[end].kind == "slash"
        start = max(done, _after_sums(term, k) if last else _start_of_numerator(term, k))
        upper, lower = _strip(term[start:k]), _strip(term[k + 1 : end])
        fraction = Item("atom", f"<mfrac>{upper}{lower}</mfrac>", spaced=term[start].spaced)
        term = [*term[:start], fraction, *term[end:]]
    return term


def _end_of_denominator(term: list[Item], k: int) -> int:
    end = k
    while end < len(term) and term[end].kind != "slash":
        follows = end == k or term[end - 1].kind == "function" or not term[end].spaced
        if not follows:
            break
        end += 1
    return end


def _start_of_numerator(term: list[Item], k: int) -> int:
    start = k - 1
    while start > 0 and (not term[start].spaced or term[start - 1].kind == "function"):
        start -= 1
    return start


def _after_sums(term: list[Item], k: int) -> int:
    """Return the place after the last sum sign of the numerator: the fraction is inside the sum."""
    sums = [place for place in range(k) if term[place].kind == "big"]
    return min(sums[-1] + 1, k - 1) if sums else 0


def _strip(items: list[Item]) -> str:
    """Return one element of a fraction, without the parentheses that the bar replaces."""
    if len(items) == 1 and items[0].inner:
        return f"<mrow>{items[0].inner}</mrow>"
    items = [replace(items[0], spaced=False), *items[1:]]
    xml = _row(items, fractions=False)
    return xml if len(items) == 1 else f"<mrow>{xml}</mrow>"


def _escape(text: str) -> str:
    return html.escape(text, quote=False)

"""Bad values by kind of argument, with the sentence that explains each, and one check of all messages."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

__all__ = ["Bad", "Case", "assert_sentence", "choice", "counts", "flags", "functions", "keys", "numbers", "refused"]

INTERNALS = re.compile(
    r"Traceback|broadcast|has no attribute|unsupported operand|jaxlib|aten::|<lambda>|<function|\b0x[0-9a-f]{6}|"
    r"positional argument|keyword argument|__init__|TracerArrayConversion|ConcretizationType|not a valid JAX type|"
    r"XLA|dot_general|cannot be interpreted|could not convert|invalid literal|must be real number|"
    r"incompatible shapes|unhashable|not subscriptable|not iterable|not callable|NoneType|ufunc|"
    r"np\.(float|int|str)\w*\(|"
    r"size of tensor|element 0 of tensors|expected scalar type|mat1 and mat2|zip\(\)|tree_map|PyTreeDef|_jax\.|"
    r"beartype|jaxtyp|Errno|takes \d+|missing \d+"
)
"""Words of Python, NumPy, JAX and PyTorch that no message of ours contains."""


@dataclass(frozen=True)
class Bad:
    """A bad value, how the message shows it, and an essential part of the sentence."""

    value: object
    shown: str
    sentence: str


@dataclass(frozen=True)
class Case:
    """A call that must be refused, and the parts of its message."""

    name: str
    call: Callable[[], object]
    quoted: str
    """The beginning of the quoted call, after the backtick, or of the line on the command line."""
    argument: str
    shown: str
    sentence: str


def assert_sentence(case: Case) -> None:
    """Check that the call raises one sentence that quotes it, names the argument, shows the value and gives advice."""
    with pytest.raises((ValueError, TypeError)) as caught:
        case.call()
    assert_text(case, str(caught.value))


def assert_text(case: Case, text: str) -> None:
    """Check a message."""
    internal = INTERNALS.search(text)
    assert internal is None, f"{internal.group()!r} in: {text}"
    assert "\n" not in text, f"several lines: {text}"
    assert case.quoted in text, f"the call is not quoted: {text}"
    for part in (case.argument, case.shown, case.sentence):
        assert part in text, f"{part!r} is not in: {text}"
    assert len(text) < 500, f"too long: {text}"


def refused(function: str, call: Callable[..., object], bad: dict[str, Iterable[Bad]]) -> list[Case]:
    """Return one case for every argument and every bad value; `call` fills in the other arguments."""
    cases = []
    for argument, values in bad.items():
        for entry in values:
            name = f"{function}({argument}): {entry.shown}"
            sentence = entry.sentence.replace("{name}", argument)
            given = {argument: entry.value}
            cases.append(Case(name, lambda given=given: call(**given), f"`{function}", argument, entry.shown, sentence))
    return cases


NOT_NUMBERS = [
    ("0.1", "'0.1'"),
    (True, "True"),
    (np.True_, "True"),
    ([0.1], "[0.1]"),
    (np.ones(2), "(2,)"),
    (1j, "1j"),
    (np.array(None, object), "None"),
    (np.str_("a"), "'a'"),
    ({"a": 1}, "{'a': 1}"),
]


def numbers(least: str = "0", below: str = "", *, optional: bool = False, zero: bool = True) -> list[Bad]:
    """Return bad values of a number of at least `least`."""
    bound = f"`{{name}}` must be a finite number, {least if zero else 'above 0'}"
    bound = bound.replace(f", {least}", f", at least {least}") + (f" and below {below}" if below else "")
    too_low = repr(float(least) - 1 if zero else 0.0)
    wrong = [Bad(value, shown, "`{name}` must be a number") for value, shown in NOT_NUMBERS]
    wrong += [] if optional else [Bad(None, "None", "`{name}` must be a number")]
    outside = [math.nan, math.inf, -math.inf, float(too_low), *([float(below)] if below else [])]
    return wrong + [Bad(value, repr(value), bound) for value in outside]


def counts(*, optional: bool = False, least: int = 1) -> list[Bad]:
    """Return bad values of a whole number."""
    kind = f"`{{name}}` must be a whole number of at least {least}"
    wrong = [
        (2.5, "2.5"),
        (True, "True"),
        ("7", "'7'"),
        (math.nan, "nan"),
        ([3], "[3]"),
        (np.ones(2, int), "(2,)"),
        (1j, "1j"),
        (np.float32(3), "3.0"),
        *([] if optional else [(None, "None")]),
    ]
    low = [Bad(value, str(value), f"`{{name}}` must be at least {least}") for value in (least - 1, -3)]
    huge = Bad(10**12, "1000000000000", "`{name}` must be at most")
    return [Bad(value, shown, kind) for value, shown in wrong] + [*low, huge]


def flags(*, optional: bool = False) -> list[Bad]:
    """Return bad values of a flag."""
    given = ["no", 1, 0.0, [True], np.ones(2, bool), *([] if optional else [None])]
    shown = lambda value: "(2,)" if isinstance(value, np.ndarray) else repr(value)
    return [Bad(value, shown(value), "`{name}` must be True or False") for value in given]


def keys(*, optional: bool = False) -> list[Bad]:
    """Return bad values of a key."""
    advice = "or a whole number"
    given = [
        ("0", "'0'"),
        (1.5, "1.5"),
        (True, "True"),
        ([0, 1], "[0, 1]"),
        (2**70, str(2**70)),
        (jnp.zeros(2), "(2,)"),
        (np.zeros(3, np.uint32), "(3,)"),
        (jnp.zeros((), bool), "False"),
        (math.nan, "nan"),
        *([] if optional else [(None, "None")]),
    ]
    several = Bad(jax.eval_shape, "eval_shape", advice)
    return [Bad(value, shown, advice) for value, shown in given] + [several]


def choice(*names: str) -> list[Bad]:
    """Return bad values of a name out of several."""
    given = [("nonsense", "'nonsense'"), (None, "None"), (1, "1"), ([], "[]"), (np.ones(2), "(2,)")]
    return [Bad(value, shown, f'"{names[0]}"') for value, shown in given]


def functions(called: str, *, arity: bool = True) -> list[Bad]:
    """Return values that are no function that is called as `called`."""
    given = [(1.0, "float"), (None, "None"), ("f", "str"), (np.ones(2), "array"), ({}, "dict")]
    several = [Bad(value, shown, f"`{called}`") for value, shown in given]
    return several + ([Bad(lambda: 0, "()", f"`{called}`")] if arity else [])

"""Random numbers of JAX, computed in one pass over memory."""

import subprocess
import sys

import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from undertow.execution.threefry import threefry

KNOWN = {
    ("00000000 00000000", "00000000 00000000"): "6b200159 99ba4efe",
    ("ffffffff ffffffff", "ffffffff ffffffff"): "1cb996fc bb002be7",
    ("13198a2e 03707344", "243f6a88 85a308d3"): "c4923a9c 483df7a0",
}
"""The known answers of Random123 for 20 rounds: key and counter, and the words they give."""


def words(text: str) -> tuple[np.ndarray, ...]:
    return tuple(np.array([int(word, 16)], np.uint32) for word in text.split())


@pytest.mark.parametrize(("given", "expected"), KNOWN.items())
def test_known_answers(given, expected):
    key, counter = map(words, given)
    assert threefry(key, counter) == words(expected)


def test_numbers_are_those_of_jax():
    key, counter = np.random.default_rng(0).integers(2**32, size=(2, 2, 100), dtype=np.uint32)
    for k in range(100):
        of_jax = threefry_2x32(key[:, k], counter[:, k])
        assert [int(word[k]) for word in threefry((key[0], key[1]), (counter[0], counter[1]))] == of_jax.tolist()


PROGRAM = """
import jax
from undertow.execution import settings
def draw(key):
    return jax.random.normal(key, (7, 3)), jax.random.randint(key, (5,), 0, 9), jax.random.split(key, 3)
before, text = draw(jax.random.key(3)), jax.jit(draw).lower(jax.random.key(3)).as_text()
jax.clear_caches()
settings.compile_fast()
after, short = draw(jax.random.key(3)), jax.jit(draw).lower(jax.random.key(3)).as_text()
assert all((x == y).all() for x, y in zip(before, after))
print("stablehlo.while" in text, "stablehlo.while" in short)
"""


def test_settings_change_the_program_and_not_the_numbers():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr

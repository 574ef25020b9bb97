"""The hash of a user's function: it changes with what the function computes, and not with where it is written."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from undertow.execution.sweeps.digest import digest_of


def test_the_address_of_a_function_is_what_it_does():
    """Not where it stands; with the numbers that it takes from around it."""
    source = "\nk = 3.0\ndef f(key, *, a: float = 1.0):\n    return {'x': sum(k * a for _ in range(3))}\n"
    one, moved, other, around = {}, {}, {}, {}
    exec(source, one)
    exec("\n\n" + source, moved)
    exec(source.replace("range(3)", "range(4)"), other)
    exec(source.replace("3.0", "4.0"), around)
    digests = [digest_of(space["f"]) for space in (one, moved, other, around)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


HEADER = "import dataclasses\nimport functools\nimport equinox as eqx\nimport jax\nimport numpy as np\n"


@pytest.mark.parametrize(
    ("around", "uses", "change"),
    [
        ("def helper(a):\n    return 2 * a\n", "helper(a)", ("2", "3")),
        ("def inner(a):\n    return 2 * a\ndef helper(a):\n    return inner(a)\n", "helper(a)", ("2", "3")),
        ("def helper(a, k=2):\n    return k * a\n", "helper(a)", ("2", "3")),
        ("helper = jax.jit(lambda a: 2 * a)\n", "helper(a)", ("2", "3")),
        ("helper = jax.vmap(jax.grad(lambda a: 2 * a))\n", "helper(a)", ("2", "3")),
        ("helper = functools.partial(lambda a, b: a * b, 2)\n", "helper(a)", ("2", "3")),
        ("helpers = [lambda a: 2 * a]\n", "helpers[0](a)", ("2", "3")),
        ("def make(k):\n    return lambda a: k * a\none, two = make(2), make(3)\n", "one(a) - two(a)",
         ("make(2), make(3)", "make(3), make(2)")),
        ("def tripled(f):\n    @functools.wraps(f)\n    def g(a):\n        return 3 * f(a)\n    return g\n"
         "@tripled\ndef helper(a):\n    return a\n", "helper(a)", ("3", "4")),
        ("table = np.array([3.0, 2.0])\n", "a * table[0]", ("3.0", "3.5")),
        ("table = np.array([1, 2])\n", "a * table[0]", ("2]", "2], np.int32")),
        ("table = np.zeros((2, 3))\n", "a * table.shape[0]", ("(2, 3)", "(3, 2)")),
        ("table = jax.numpy.arange(3.0)\n", "a * table", ("3.0", "4.0")),
        ("start = jax.random.key(0)\n", "jax.random.normal(start)", ("key(0)", "key(1)")),
        ("options = {'rate': {'low': [1.0, (2.0,)]}}\n", "options", ("2.0", "3.0")),
        ("class Net(eqx.Module):\n    w: jax.Array\nnet = Net(jax.numpy.zeros(2))\n", "net.w", ("(2)", "(3)")),
        ("@dataclasses.dataclass\nclass Option:\n    rate: float\noption = Option(2.0)\n", "option.rate",
         ("2.0", "3.0")),
        ("names = {'a', 'b'}\n", "len(names)", ("'b'", "'c'")),
        ("library = np\n", "library.pi", ("= np", "= jax")),
        ("function = np.sin\n", "function(a)", ("sin", "cos")),
        ("function = jax.numpy.sin\n", "function(a)", ("sin", "cos")),
        ("def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n != 0 and even(n - 1)\n", "even(a)",
         ("n != 0", "n > 0")),
        ("loop = [1]\nloop.append(loop)\n", "loop[0]", ("[1]", "[2]")),
        ("", "a", ("a: float", "a: int")),
        ("", "a in {'left', 'right'}", ("right", "up")),
    ],
)  # fmt: skip
def test_a_function_is_also_what_it_uses(around, uses, change):
    source = f"{HEADER}{around}def f(key, *, a: float = 1.0):\n    return {{'x': {uses}}}\n"
    spaces = {}, {}, {}
    changed = source.replace(*change)
    assert changed != source
    for text, space in zip((source, source.replace(HEADER, f"{HEADER}\n\n"), changed), spaces, strict=True):
        exec(text, space)
    one, moved, other = (digest_of(space["f"]) for space in spaces)
    assert one == moved != other


def test_objects_count_by_their_types():
    """And never stop a sweep."""

    class Odd:
        def __getattr__(self, name):
            raise RuntimeError("ask me nothing")

    digests = set()
    for thing in (object(), object(), Odd(), open, Path, threading.Lock()):
        space = {"thing": thing}
        exec("def f(key, *, a: float):\n    return {'x': a if thing else 0}\n", space)
        digests.add(digest_of(space["f"]))
    assert len(digests) == 5


def test_a_function_with_sets_is_found_again_by_another_process():
    """The order of a set of words depends on the process."""
    program = (
        "from undertow.execution.sweeps.digest import digest_of\nwords = {'a', 'b', 'c', ('d', frozenset('efg'))}\n"
        "def f(key, *, a: str):\n    return {'x': a in words or a in {'left', 'right', 'up', 'down'}}\n"
        "print(digest_of(f), [*words])"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout.split(" ", 1)
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0][1] != said[1][1]
    assert said[0][0] == said[1][0]

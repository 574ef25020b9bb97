"""The random numbers of JAX in one pass over memory on a CPU.

JAX writes the cipher Threefry-2x32 (Salmon et al. 2011) as a loop on a CPU, which keeps programs small and passes five
times over the array of numbers. Written out, XLA computes it in one pass, and the numbers are the same.
"""

import numpy as np
from jaxtyping import Array, UInt32

__all__ = ["threefry", "write_out_rounds"]

Words = UInt32[Array | np.ndarray, "..."]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
"""The constant of the key schedule."""
GROUPS = 5
"""Each has four rounds and adds the key."""


def threefry(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Return the two encrypted words of each counter by 20 rounds of Threefry-2x32.

    >>> import numpy as np
    >>> from undertow.execution.threefry import threefry
    >>> zero = np.zeros(1, np.uint32)
    >>> print([hex(word[0]) for word in threefry((zero, zero), (zero, zero))])
    ['0x6b200159', '0x99ba4efe']
    """
    words = (*key, key[0] ^ key[1] ^ np.uint32(PARITY))
    left, right = counter[0] + words[0], counter[1] + words[1]
    for group in range(GROUPS):
        for rotation in ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation)))
        left = left + words[(group + 1) % 3]
        right = right + words[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def write_out_rounds() -> None:
    """Make JAX use `threefry` for its random numbers on a CPU; a version of JAX without such a rule stays as it is."""
    try:
        from jax.extend.random import threefry2x32_p
        from jax.interpreters.mlir import lower_fun, register_lowering
    except ImportError:
        return
    rule = lower_fun(lambda *words: threefry(words[:2], words[2:]), multiple_results=True)
    register_lowering(threefry2x32_p, rule, platform="cpu")

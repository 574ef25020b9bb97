"""The settings of JAX in a process that runs experiments."""

import os
import subprocess
import sys


def test_workers_have_settings_of_their_own():
    """Whatever the environment says: results of workers are found again without a word of it."""
    program = (
        "from undertow.execution import settings; settings.configure(); "
        "assert settings.settings() == {n: str(v) for n, v in settings.SETTINGS.items()}, settings.settings(); "
        "import jax; print(jax.random.key_impl(jax.random.key(0)), jax.numpy.ones(1).dtype)"
    )
    environment = {
        "JAX_DEFAULT_PRNG_IMPL": "rbg",
        "JAX_DEFAULT_MATMUL_PRECISION": "high",
        "JAX_RANDOM_SEED_OFFSET": "7",
    }
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True)
    assert done.stdout.split() == ["threefry2x32", "float64"], done.stderr


def test_fast_compilation_keeps_the_precision_and_the_flags_of_the_environment(tmp_path):
    """A user's file keeps float32 and its own XLA_FLAGS; programs are stored under UNDERTOW_CACHE."""
    program = (
        "import os; from undertow.execution import settings; settings.compile_fast(); "
        "import jax; print(jax.jit(lambda x: 2 * x)(jax.numpy.ones(1)).dtype, os.environ['XLA_FLAGS'])"
    )
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0", "UNDERTOW_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | flags, capture_output=True, text=True)
    assert done.stdout.split() == ["float32", flags["XLA_FLAGS"]], done.stderr
    assert any((tmp_path / "xla").iterdir())

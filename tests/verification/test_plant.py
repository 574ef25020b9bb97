"""A plant replaces a name inside its context, restores it, and drops programs that were compiled before."""

import jax
import jax.numpy as jnp
import pytest

from undertow.verification import plant, replaced

FACTOR = 2.0


@jax.jit
def doubled(x):
    return FACTOR * x


def test_a_name_of_a_module_and_of_a_class():
    with replaced(f"{plant.__name__}._resolve", lambda right: (right, "planted"))():
        assert plant._resolve[1] == "planted"
    assert callable(plant._resolve)
    with replaced("undertow.verification.claim.ClaimError.__doc__", str.upper)():
        assert "CANNOT BE RUN" in plant._resolve("undertow.verification.claim.ClaimError").__doc__


def test_a_global_name_of_a_function_also_in_compiled_programs():
    def use():
        return float(doubled(jnp.array(1.0)))

    assert use() == 2.0
    with replaced(use, lambda factor: 3 * factor, "FACTOR")():
        assert use() == 6.0
    assert use() == 2.0


def test_names_that_are_new_in_the_context_stay():
    def use():
        return FACTOR

    with replaced(use, lambda factor: 0.0, "FACTOR")():
        globals()["NEW"] = 1
    assert globals().pop("NEW") == 1


def test_names_are_restored_after_an_error():
    def use():
        return FACTOR

    with pytest.raises(ArithmeticError), replaced(use, lambda factor: 0.0, "FACTOR")():
        raise ArithmeticError
    assert use() == 2.0


def test_a_name_that_does_not_exist():
    def use():
        return FACTOR

    with pytest.raises(AttributeError, match="the file of use has no name 'FACTR'"), replaced(use, abs, "FACTR")():
        pass
    with pytest.raises(AttributeError), replaced("undertow.verification.claim.Clam", abs)():
        pass

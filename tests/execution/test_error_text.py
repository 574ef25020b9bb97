"""Exceptions of a user's code as text, with the line of the user's file."""

import json
import sysconfig

import pytest

from undertow.execution.error_text import error_message
from undertow.execution.registry import load_file


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError: "),
        (KeyError("größe"), "KeyError: 'größe'"),
        (ValueError("x" * 500), "ValueError: " + "x" * 288),
    ],
    ids=["two lines", "empty", "not ASCII", "long"],
)
def test_the_message_of_an_error_is_its_first_line(error, message):
    assert error_message(error) == message


@pytest.fixture
def raised(tmp_path):
    def raised(code):
        (tmp_path / "größe.py").write_text(code)
        with pytest.raises(Exception) as caught:
            load_file(tmp_path / "größe.py").call()
        return error_message(caught.value)

    return raised


def test_the_place_is_the_innermost_line_of_the_users_file(raised):
    assert raised("def call():\n    inner()\n\ndef inner():\n    raise ValueError('no')\n") == (
        "ValueError: no (größe.py, line 5)"
    )


@pytest.mark.parametrize(
    "library",
    [
        "import json\n\ndef call():\n    json.loads('{')\n",
        "import numpy\n\ndef call():\n    numpy.linalg.inv(numpy.zeros((2, 3)))\n",
        "import undertow\n\ndef call():\n    undertow.Isotropic(1, 1)\n",
    ],
    ids=["standard library", "package", "undertow"],
)
def test_the_place_of_an_error_inside_a_library_is_the_users_call(raised, library):
    assert raised(library).endswith("(größe.py, line 4)")


def test_an_error_without_a_line_of_the_user_has_no_place():
    assert sysconfig.get_path("stdlib") in json.__file__
    with pytest.raises(ValueError, match="line 1") as caught:
        json.loads("{")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert error_message(caught.value) == str(f"JSONDecodeError: {caught.value}")

"""All instruments: six, sliders for all numbers of training, pages of theory that exist, and ready-made pages."""

import json
from pathlib import Path

import pytest

from docs.explorer import FOLDER
from tests.explore.instrument_checks import check_stored
from undertow.explore.instruments import instruments

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_there_are_six_with_pages_of_theory():
    several = instruments()
    assert len(several) == 6
    assert all((DOCS / f"{one.theory}.md").is_file() for one in several.values())
    sliders = {slider.name for one in several.values() for slider in one.sliders}
    assert {"step_size", "batch_size", "noise", "seeds", "decay"} <= sliders


def test_descriptions_are_json():
    json.dumps([one.describe() for one in instruments().values()], allow_nan=False)


def test_names_in_the_code_are_those_of_sliders():
    for one in instruments().values():
        assert "$" not in one.python(one.defaults())


def test_the_pages_of_the_documentation_have_a_few_hundred_kilobytes():
    files = {file.stem: file.stat().st_size for file in FOLDER.glob("*.js")}
    assert set(files) == set(instruments())
    assert max(files.values()) < 500_000


@pytest.mark.slow  # several minutes for all of them: programs are compiled
@pytest.mark.parametrize("name", list(instruments()))
def test_three_pictures_of_a_page_agree_with_the_library(name):
    check_stored(instruments()[name])

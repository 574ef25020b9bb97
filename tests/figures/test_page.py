"""The HTML page around a body."""

from importlib.resources import files


def test_style_and_script_travel_with_the_package():
    for name in ("page.css", "page.js"):
        assert files("undertow.figures").joinpath(name).is_file()

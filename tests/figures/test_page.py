"""The HTML page around a body."""

import base64
import hashlib
import re
from importlib.resources import files

import jinja2
import pytest
from markupsafe import Markup

from undertow.figures.page import POLICY, page, templates


def test_style_and_script_travel_with_the_package():
    for name in ("page.css", "page.js"):
        assert files("undertow.figures").joinpath(name).is_file()


def test_text_is_escaped_and_markup_is_not():
    assert "\n&lt;b&gt;größe&lt;/b&gt;\n" in page("a page", "<b>größe</b>")
    assert "\n<b>größe</b>\n" in page("a page", Markup("<b>größe</b>"))
    assert "<title>1 &lt; 2 &amp; &#34;3&#34;</title>" in page('1 < 2 & "3"', "")


def test_an_empty_page_is_well_formed():
    html = page("", "")
    assert html.startswith("<!doctype html>\n")
    assert html.rstrip().endswith("</body></html>")
    assert html.count("<style>") == html.count("</style>") == 1


def test_a_page_has_the_script_on_request_alone():
    assert "<script>" not in page("a page", "")
    scripted = page("a page", "", scripted=True)
    assert files("undertow.figures").joinpath("page.js").read_text(encoding="utf-8") in scripted
    assert scripted.count("<script>") == 1


def policy_of(html: str) -> str:
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', html)
    return policy


def test_the_script_is_allowed_by_the_hash_of_its_text():
    html = page("a page", "", scripted=True)
    (script,) = re.findall("<script>(.*?)</script>", html, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy_of(html)
    assert "unsafe-inline" not in policy_of(html).partition("script-src")[2]


def test_pictures_beside_a_page_are_allowed_on_request_alone():
    assert "file:" not in policy_of(page("a page", "", scripted=True))
    assert "img-src data: 'self' file:" in policy_of(page("a page", "", beside=True))


def test_a_page_has_the_style_and_loads_nothing():
    html = page("a page", "", scripted=True)
    assert files("undertow.figures").joinpath("page.css").read_text(encoding="utf-8") in html
    assert policy_of(page("a page", "")) == POLICY
    assert policy_of(html).startswith(f"{POLICY}; script-src 'sha256-")
    assert "default-src 'none'" in POLICY
    assert "script-src" not in POLICY  # none at all
    assert not re.findall('<link|<script src|src="http|@import|url\\(http', html)


def test_a_value_that_a_template_does_not_get_is_an_error():
    """An empty place on a page would hide the mistake."""
    template = templates("undertow.analysis").from_string("{{ missing }}")
    with pytest.raises(jinja2.UndefinedError, match="'missing' is undefined"):
        template.render()


def test_templates_of_a_package_are_loaded_once():
    assert templates("undertow.figures") is templates("undertow.figures")
    assert templates("undertow.figures") is not templates("undertow.analysis")
    with pytest.raises(jinja2.TemplateNotFound):
        templates("undertow.figures").get_template("nowhere.html")

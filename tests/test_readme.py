"""The Python of the README runs, its commands exist, and its numbers are the measured ones."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from undertow.verification import claims
from undertow.verification.errata import expected

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_python_blocks_print_the_output_shown_and_draw_a_figure(tmp_path):
    (code,) = blocks()
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 10
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["noise.png"]
    for line in out.stdout.strip().splitlines():
        assert f"    {line}\n" in TEXT


def test_make_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", TEXT, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_verdicts_shown_are_the_verdicts_expected():
    shown = re.findall(r"^    (holds|corrected) +(\S+) ", TEXT, flags=re.MULTILINE)
    assert len(shown) >= 5
    assert all(expected(name) == verdict for verdict, name in shown)
    assert f"{len(claims)} of {len(claims)} verdicts as expected" in TEXT
    assert f"each of {len(claims)} claims" in TEXT


def test_public_names_shown_exist():
    import undertow as ut

    for name in re.findall(r"`([A-Z][A-Za-z]+)[(`]", TEXT):
        assert hasattr(ut, name), name


def test_the_stated_speed_is_the_measured_speed():
    from benchmarks.readme import section

    assert section() in TEXT


def test_links_and_images_exist():
    targets = re.findall(r"\]\(([^)#]+)", TEXT)
    assert len(targets) >= 20
    for target in targets:
        assert target.startswith("https://arxiv.org/") or (ROOT / target).is_file(), target


def test_the_overview_is_short():
    (table,) = re.findall(r"\| task \| name \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT)
    assert len(table.splitlines()) <= 15


def test_the_numbers_below_the_first_figure_are_those_of_the_study():
    from studies.adamw_figures import setting, values_of
    from studies.results import load

    llama = load("adamw")["networks"]["Llama"]
    scatter = {key: values_of(values) for key, values in setting(llama, 0.1, 0.999)["scatter"].items()}
    measured, error = np.exp(scatter["measured"]), np.abs(np.expm1(scatter["adamw"] - scatter["measured"]))
    caption = TEXT[TEXT.index("adamw-ratios.svg") : TEXT.index("## Install")].replace("\n", " ")
    assert f"Each of the {len(measured)} points" in caption
    steps = f"averaged over the second half of {llama['steps']:,} steps"
    assert f"{steps}, from {measured.min():.1g} to {measured.max():.0f}." in caption
    assert f"median error of {100 * np.median(error):.0f} %" in caption
    assert np.all(np.round(np.exp(scatter["sgd"]), 2) == 1)

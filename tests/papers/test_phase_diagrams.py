"""All phase diagrams: their grids are valid specifications, and the command line draws them."""

import pytest

from undertow.execution.registry import diagrams
from undertow.execution.sweeps.spec import as_spec


@pytest.mark.parametrize("name", diagrams)
def test_default_grids_are_valid_specifications(name):
    diagram = diagrams[name]
    spec = as_spec(name, diagram.axes(5), seeds=2)
    assert spec.points == 25
    assert {axis.name for axis in spec.axes} == set(diagram.shown)


@pytest.mark.slow
def test_diagrams_from_the_command_line(tmp_path, capsys):
    from undertow.cli import main

    for name in diagrams:
        with pytest.raises(SystemExit) as status:
            main(["run", "phase-diagram", "--of", name, "--points", "3", "--seeds", "2", "--out", str(tmp_path)])
        assert status.value.code == 0
        (figure,) = tmp_path.glob(f"{name}-*/figure.svg")
        assert "predicted" in figure.read_text() or "residual" in figure.read_text()
    assert capsys.readouterr().out.count("figure:") == 3

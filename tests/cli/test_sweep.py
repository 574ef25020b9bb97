"""`undertow sweep run`, `check` and `status`."""

from pathlib import Path

import pytest

from undertow.cli import main

FILE = str(Path(__file__).parents[1] / "execution" / "sweeps" / "functions.py")


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    """Other processes, a TOML file, compilations counted, a figure, and the status."""
    spec = tmp_path / "s.toml"
    spec.write_text(f'experiment = "{FILE}:walk"\nseeds = 40\n[axes]\nstep_size = {{log = [0.1, 10.0, 8]}}\n'
                    "drift = {linear = [0.0, 1.0, 5]}\n")  # fmt: skip
    for expected in ("1,600 runs in ", "1,600 of 1,600 runs were stored already"):
        with pytest.raises(SystemExit) as status:
            main(["sweep", "run", str(spec), "--out", str(tmp_path / "o")])
        assert status.value.code == 0
        assert expected in capsys.readouterr().out
    (folder,) = (tmp_path / "o").glob("walk-*")
    assert (folder / "figure.svg").is_file()
    with pytest.raises(SystemExit):
        main(["sweep", "status", str(folder)])
    assert "1,600 of 1,600 runs done; finished." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sweep", "check", str(spec)])
    out = capsys.readouterr().out
    assert "compilation" in out
    assert "on the disk" in out

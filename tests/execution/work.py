"""Stand-ins for the work of a claim: they import nothing heavy, and misbehave by name."""

import os
import signal
import time
from pathlib import Path

from undertow.execution import store


def result_of(task: dict, **more) -> dict:
    facts = {
        "verdict": "holds", "expected": "holds", "paper": "zero_loss", "place": "", "statement": "", "equation": "",
        "measured": 1.0, "predicted": 1.0, "uncertainty": 0.1, "printed": None, "what": "w", "criterion": "c",
        "checks": [], "seeds": 1, "seeds_needed": None, "diverged": 0, "note": "", "seconds": 0.0,
        "compile_seconds": 0.0, "run_seconds": 0.0, "provenance": {},
    }  # fmt: skip
    return facts | task | more


def finish(task: dict, out: str) -> dict:
    import json

    import xarray

    folder = Path(out) / "claims" / task["claim"]
    store.save(folder / "data.zarr", xarray.Dataset({"a": ((), 1.0)}), {})
    store.write_bytes(folder / "figure.svg", b"<svg/>")
    result = result_of(task)
    store.write_bytes(folder / "result.json", json.dumps(result).encode())
    with open(Path(out) / "log", "a") as log:
        log.write(task["claim"] + "\n")
    return result


def finish_or_die(task: dict, out: str) -> dict:
    if task["claim"] == "additive-covariance":
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return finish(task, out)


def finish_or_hang(task: dict, out: str) -> dict:
    if task["claim"] == "additive-covariance":
        time.sleep(600)
    return finish(task, out)

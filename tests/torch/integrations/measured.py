"""Run a training script as the main program and print what its monitor measured, as JSON in the last line.

python -m tests.torch.integrations.measured SCRIPT.py
"""

import json
import runpy
import sys


def monitor_of(namespace):
    """Return the monitor of a script: its own, or that of the callback in its trainer."""
    if "monitor" in namespace:
        return namespace["monitor"]
    trainer = namespace["trainer"]
    callbacks = trainer.callbacks if hasattr(trainer, "callbacks") else trainer.callback_handler.callbacks
    return next(callback for callback in callbacks if type(callback).__name__ == "NoiseCallback").monitor


if __name__ == "__main__":
    monitor = monitor_of(runpy.run_path(sys.argv[1], run_name="__main__"))
    scales = monitor.noise_scale
    result = {
        "steps": monitor.steps,
        "measured": [record.step for record in scales.history],
        "symmetries": len(monitor.census),
        "rows": len(monitor.rows),
        "skipped": list(monitor.skipped),
        "noise": scales.total.noise,
        "covered": scales.covered,
        "uncovered": scales.uncovered,
        "trainable": [name for name, p in monitor.model.named_parameters() if p.requires_grad],
    }
    print(json.dumps(result))

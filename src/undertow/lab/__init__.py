"""Running, keeping and showing: the store, the runner, the report. Nothing in the mathematics imports it."""

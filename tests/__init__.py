"""Tests of undertow; the folders mirror `src/undertow`."""

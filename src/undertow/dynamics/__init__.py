"""Runs of SGD, of its SDE and of gradient flow. All long loops of the library are in this package."""

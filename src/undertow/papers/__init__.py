"""The papers: models, claims, errata, coverage and phase diagrams of each."""

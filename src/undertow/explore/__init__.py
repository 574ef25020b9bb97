"""The explorer: instruments that show theory beside simulation, on a page of a local server or in the documentation."""

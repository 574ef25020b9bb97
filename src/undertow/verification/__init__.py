"""Claims, criteria, the runner and the report."""

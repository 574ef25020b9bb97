"""Estimators for grouped data, the tests behind them, penalties and simulated designs."""

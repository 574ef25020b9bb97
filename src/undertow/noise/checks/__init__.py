"""The parts of `check_noise`: contract of the methods, algebra of the covariance, statistics of the draws."""

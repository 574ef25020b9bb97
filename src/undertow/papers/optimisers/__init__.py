"""The averaged flow of SGD at a finite step size, and published results on Adam, momentum and schedules."""

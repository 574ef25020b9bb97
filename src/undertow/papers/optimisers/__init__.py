"""The averaged flow of SGD at a finite step size, and published results on Adam, momentum and schedules."""

__all__ = ["TITLE"]

TITLE = "Beyond the Papers: the Averaged Flow at a Finite Step"

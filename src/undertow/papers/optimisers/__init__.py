"""The averaged flow of SGD at a finite step size: theory of undertow itself, beyond the papers."""

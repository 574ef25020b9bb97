"""What SGD does, its SDE, and the end of gradient flow: the only place with long loops."""

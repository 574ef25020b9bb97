"""`undertow analyze`: the symmetries, noise and sharpness of a user's own problem."""

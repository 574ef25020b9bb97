"""A figure with a line and three sets of points, shared by tests of figures."""

import numpy as np

from undertow.figures import style

LABELS = ("the theory of a thing", "an experiment", "another, with a longer name", "a fourth")


def curve(x=(1.0, 2.0, 3.0), panels=1, **more):
    figure, panels = style.new_figure(panels, **more)
    for axes in panels:
        style.theory(axes, x, np.square(x), LABELS[0])
        for k, label in enumerate(LABELS[1:]):
            style.points(axes, x, np.square(x) + k, [0.1] * len(x), label)
        axes.set_xlabel("step size η")
        axes.set_ylabel("|w − w*|² & <more>")
        axes.legend()
    return figure

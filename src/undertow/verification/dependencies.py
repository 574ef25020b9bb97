"""What claims rest on: names that do not exist, and claims that rest on each other."""

import difflib
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter

from undertow.verification.claim import Claim

__all__ = ["dependency_problems"]


def dependency_problems(claims: Mapping[str, Claim], known: Collection[str] = ()) -> dict[str, str]:
    """Return a sentence for every claim that rests on a missing one, or on itself through others, by claim.

    `known` are names of claims beside those in `claims`.
    """
    problems: dict[str, str] = {}
    every = {*claims, *known}
    for name, claim in claims.items():
        for missing in (other for other in claim.rests_on if other not in every):
            near = difflib.get_close_matches(missing, sorted(every), n=1)
            hint = f"did you mean {near[0]}?" if near else "it is not run."
            problems[name] = f"the claim {name!r} rests on {missing!r}, and there is no such claim; {hint}"
    graph = {name: {other for other in claim.rests_on if other in claims} for name, claim in claims.items()}
    while cycle := _cycle(graph):
        each_other = f"the claims {', '.join(cycle)} rest on each other; none of them is run."
        sentence = each_other if len(cycle) > 1 else f"the claim {cycle[0]!r} rests on itself; it is not run."
        for name in cycle:
            problems.setdefault(name, sentence)
            graph[name] = set()
    return problems


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the claims of one cycle in their order; none where there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(dict.fromkeys(error.args[1]))
    return []

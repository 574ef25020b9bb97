"""`python -m docs.gallery FOLDER`: store compact figures and results of `undertow verify --out FOLDER` for the site.

`make gallery` first runs the claims at the smallest scale. The pages of the gallery are made from the stored files.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from undertow.execution.store import JSONObject
from undertow.verification.result import ClaimResult, read_results

__all__ = ["FOLDER", "compact", "kept", "read", "results", "store", "write"]

FOLDER = Path(__file__).parent / "gallery"
KEPT = ("claim", "scale", "seed", "verdict", "seeds", "diverged", "note", "seconds", "parameters")
FONT = "font-family: 'DejaVu Sans', Verdana, sans-serif; "
CHECKED = ("what", "measured", "predicted", "uncertainty", "criterion", "printed", "alternative", "power", "verdict")


def compact(svg: str) -> str:
    """Return the same figure in fewer bytes: no metadata, hundredths of a point, styles stated once, paths joined."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = _in_tags(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), body)
    body = re.sub(r' (d|points)="([^"]*)"', lambda m: f' {m[1]}="{" ".join(m[2].split())}"', body)
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    short = {name: f"a{number}" for number, name in enumerate(used)}
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", body)
    body = re.sub(r'(url\(#|href="#)([^)"]+)', lambda m: m[1] + short[m[2]], body)
    body = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", body)
    body = body.replace(FONT, "").replace("<svg ", f'<svg font-family="{FONT[13:-2]}" ', 1)
    body = _in_tags(r"-0(?![.\d])", lambda m: "0", re.sub(r">\s+<", "><", body))
    body = re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", _share, body)
    body = re.sub(r'<path d="[^"]*"((?: [a-z-]+="[^"]*")+)/>(?:<path d="[^"]*"\1/>)+', _join, body)
    body = re.sub(r' d="([MLz\d.\s-]+)"', lambda m: f' d="{m[1].replace(" L ", " ")}"', body)
    return re.sub(r"<g>((?:(?!</?g[ >]).)*)</g>", r"\1", body).strip() + "\n"


def _in_tags(pattern: str, put: Callable[[re.Match[str]], str], body: str) -> str:
    """Replace inside tags only; the text between them stays as it is."""
    return re.sub(r"<[^>]+>", lambda tag: re.sub(pattern, put, tag[0]), body)


def _share(group: re.Match[str]) -> str:
    """Move the style that all marks of a group share to the group."""
    styles = set(re.findall(r' style="([^"]*)"', group[2]))
    marks = group[2].count("<use ")
    if len(styles) != 1 or "style=" in group[1] or group[2].count(" style=") != marks:
        return group[0]
    (style,) = styles
    plain = group[2].replace(f' style="{style}"', "")
    return f'<g{group[1]} style="{style}">{plain}</g>'


def _join(paths: re.Match[str]) -> str:
    """Join lines of the same style, such as the intervals of points, to one path."""
    if "fill: none" not in paths[1] or "opacity" in paths[1]:
        return paths[0]
    joined = " ".join(re.findall(r' d="([^"]*)"', paths[0]))
    return f'<path d="{joined}"{paths[1]}/>'


def kept(result: ClaimResult) -> JSONObject:
    """Return the fields of a result that the pages need, as plain values."""
    stored, made = result.to_json(), result.provenance
    checks = [{name: check[name] for name in CHECKED} for check in stored["checks"]]
    where = {} if made is None else {"undertow": made.undertow, "device": made.device}
    return {name: stored[name] for name in KEPT} | where | {"checks": checks}


def write(file: Path, results: list[JSONObject]) -> None:
    """Write a file of results, one per line."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("[\n" + ",\n".join(json.dumps(result) for result in results) + "\n]\n")


def read(file: Path) -> list[ClaimResult]:
    """Return the results that `write` stored."""
    return [ClaimResult.from_json(result) for result in json.loads(file.read_text())]


def store(report: Path) -> list[str]:
    """Write the results and figures of a report folder into the gallery, and delete the earlier ones."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.svg"):
        old.unlink()
    shown: list[ClaimResult] = []
    for result in read_results(report):
        figure = report / "claims" / result.claim / "figure.svg"
        if not figure.is_file() or not result.checks:
            continue
        (FOLDER / f"{result.claim}.svg").write_text(compact(figure.read_text()))
        shown.append(result)
    write(FOLDER / "results.json", [kept(result) for result in shown])
    return [result.claim for result in shown]


def results() -> dict[str, ClaimResult]:
    """Return the results in the gallery, by claim."""
    file = FOLDER / "results.json"
    return {result.claim: result for result in read(file)} if file.is_file() else {}


def main() -> None:
    """Read the folder named on the command line."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "results.json").is_file():
        raise SystemExit("usage: python -m docs.gallery FOLDER, a folder that `undertow verify --out FOLDER` wrote")
    names = store(Path(sys.argv[1]))
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"{len(names)} claims in {FOLDER}, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

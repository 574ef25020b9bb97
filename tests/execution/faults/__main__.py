"""Inject faults into sweeps, `verify` and `report`, and check what is left after each.

usage: python -m tests.execution.faults FOLDER COUNT SEED [TABLE.md]

After each fault the same command runs to its end. Then the bytes of its results must be those of an undisturbed run,
no part that was finished on the disk may have run again, no part may have run twice, and no temporary file may be left.
"""

import json
import os
import random
import resource
import shutil
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "NPROC": "1", "PYTHONWARNINGS": "ignore", "MPLBACKEND": "agg"}

from tests.execution.faults import claims, kinds
from tests.execution.faults.processes import Child, Dask, serve
from tests.execution.faults.subjects import DaskSweep, Report, Subject, Sweep, Verify

LANES = 3
"""Faults at the same time: much of it is waiting."""


def plan(count: int, seed: int) -> list[int]:
    """Return the kinds of `count` faults, in shares as `KINDS` says, in random order."""
    shares = [share for *_, share in kinds.KINDS]
    each = [max(1, count * share // sum(shares)) for share in shares]
    chosen = [index for index, number in enumerate(each) for _ in range(number)]
    rng = random.Random(f"{seed}.plan")
    chosen += rng.choices(range(len(shares)), shares, k=max(0, count - len(chosen)))
    rng.shuffle(chosen)
    return chosen[:count]


def prepare_references(folder: Path) -> None:
    """Run every command undisturbed, and count its operations on files."""
    references = folder / "references"
    for subject, seed, name in ((Sweep, None, "sweep"), (Verify, 0, "seed-0"), (Verify, 1, "seed-1")):
        if subject is Verify:
            Verify.earlier = references / "seed-0" / "out" if seed else references / "empty"
            (references / "empty").mkdir(exist_ok=True)
        undisturbed(subject, references / name, seed)
        subject.reference = references / name / "out"
    DaskSweep.reference = Sweep.reference
    Verify.earlier = references / "seed-0" / "out"
    Report.earlier = Report.reference = references / "seed-1" / "out"
    undisturbed(Report, references / "report", None)
    for jobs in (1, 2):
        Sweep.jobs = jobs
        undisturbed(Sweep, references / f"sweep-{jobs}", None)
    for table in (kinds.moments, kinds.seconds):
        table["sweep on Dask", 2], table["verify", 2] = table["sweep", 2], table["verify", 1]


def undisturbed(kind: type[Subject], folder: Path, seed: int | None) -> None:
    subject = kind(folder)
    counted = folder / "counted"

    def count() -> None:
        counts = kinds.trace(str(subject.out), 0, lambda: None)
        end = os._exit

        def exit_counted(status: int) -> None:
            counted.write_text(str(counts[0]))
            end(status)

        os._exit = exit_counted

    began = time.monotonic()
    child = subject.start(count) if seed is None else subject.start(count, seed=seed)
    assert child.wait() == 0, child.text()
    kinds.seconds[subject.name, subject.jobs] = time.monotonic() - began
    kinds.moments[subject.name, subject.jobs] = int(counted.read_text())


def inject(index: int, kind: int, folder: Path, seed: int, clusters: list[Dask]) -> str:
    """Inject one fault, continue, and check; return what the fault did."""
    rng = random.Random(f"{seed}.{index}")
    _, subject_type, fault, _ = kinds.KINDS[kind]
    subject = subject_type(folder / str(index))
    subject.jobs = 2 if subject_type is DaskSweep else rng.choice([1, 1, 2]) if subject_type is Sweep else 1
    if isinstance(subject, Verify):
        subject.exchange = rng.random() < 0.7
    if isinstance(subject, DaskSweep):
        cluster = whole_cluster(folder, clusters)
        subject.address = cluster.address
        outcome = fault(subject, rng, cluster)
        subject.address = whole_cluster(folder, clusters).address
    else:
        outcome = fault(subject, rng)
    finished = subject.finished()
    last = subject.start()
    status = last.wait()
    assert status == 0, f"the same command then ended with {status}: {last.text()[-600:]}"
    ran = subject.ran(subject.drivers)
    assert not finished & set(ran), f"finished and run again: {finished & set(ran)}"
    assert max(Counter(ran).values(), default=0) <= 1, f"run twice: {Counter(ran).most_common(1)}"
    difference = subject.difference()
    assert not difference, f"not as undisturbed: {difference}"
    left = [str(path) for path in subject.out.rglob(".*") if path.name.endswith((".partial", ".retired"))]
    assert not left, f"left behind: {left}"
    shutil.rmtree(subject.folder)
    return outcome


def whole_cluster(folder: Path, clusters: list[Dask]) -> Dask:
    """Return the cluster of this lane, with all its parts running."""
    if clusters and not clusters[0].scheduler.alive():
        clusters.pop().end()
    if not clusters:
        clusters.append(Dask(folder))
    clusters[0].mend()
    return clusters[0]


def lane(number: int, folder: Path, chosen: list[int], seed: int) -> int:
    """Inject every fault whose index belongs to this lane, one after the other."""
    folder = folder / f"lane-{number}"
    folder.mkdir()
    clusters: list[Dask] = []
    failures = 0
    with open(folder / "outcomes", "w") as outcomes:
        for index in range(number, len(chosen), LANES):
            began, error, outcome = time.monotonic(), "", ""
            try:
                outcome = inject(index, chosen[index], folder, seed, clusters)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}"
                if not isinstance(problem, AssertionError):
                    error += "\n" + traceback.format_exc()
                failures += 1
                name, subject, *_ = kinds.KINDS[chosen[index]]
                print(f"fault {index}, {subject.name}, {name}: {error}", file=sys.__stderr__, flush=True)
            record = {"kind": chosen[index], "index": index, "outcome": outcome, "error": error,
                      "seconds": time.monotonic() - began}  # fmt: skip
            outcomes.write(json.dumps(record) + "\n")
            outcomes.flush()
    for cluster in clusters:
        cluster.end()
    return min(1, failures)


def run(folder: Path, count: int, seed: int) -> tuple[list[dict], float, float]:
    """Inject faults; return a record for each, the seconds and the processor's seconds."""
    import distributed  # noqa: F401  before the forks

    began = time.monotonic()
    folder.mkdir(parents=True)
    os.environ["UNDERTOW_CACHE"] = str(folder / "cache")
    claims.install()
    claims.tasks(0), claims.tasks(1)
    from undertow.execution.provenance import fingerprint

    fingerprint()
    serve()
    prepare_references(folder)
    chosen = plan(count, seed)
    lanes = [Child(folder / f"lane-{n}.log", lane, n, folder, chosen, seed) for n in range(LANES)]
    for child in lanes:
        child.wait(24 * 3600)
    records = [
        json.loads(line) for n in range(LANES) for line in (folder / f"lane-{n}" / "outcomes").read_text().splitlines()
    ]
    used = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return records, time.monotonic() - began, used


def table(records: list[dict], seed: int, seconds: float, used: float) -> str:
    """Return the page of the documentation."""
    rows: dict[int, list[dict]] = defaultdict(list)
    for record in records:
        rows[record["kind"]].append(record)
    passed = sum(not record["error"] for record in records)
    lines = [
        "# Faults",
        "",
        f"`make faults` injected {len(records)} faults (seed {seed}) in {seconds:.0f} s, with {used:.0f} s of processor"
        f" time. {passed} of {len(records)} passed. After each fault the same command ran to its end. Four conditions "
        "were checked: all files of the result have the bytes of an undisturbed run; no block of a sweep and no claim "
        "whose result was complete on the disk ran again; nothing ran twice; no temporary file was left.",
        "",
        "| command | fault | times | passed | what happened |",
        "|---|---|---:|---:|---|",
    ]
    for kind, found in sorted(rows.items()):
        name, subject, *_ = kinds.KINDS[kind]
        outcomes = Counter(record["outcome"] for record in found if not record["error"])
        text = "; ".join(f"{outcome} ({number})" for outcome, number in outcomes.most_common())
        good = sum(not record["error"] for record in found)
        lines.append(f"| {subject.name} | {name} | {len(found)} | {good} | {text} |")
    disk = "a tmpfs that is too small" if kinds.MAY_MOUNT else "a limit on the size of files"
    lines += [
        "",
        "A sweep has 12 blocks, which run in the process of the driver or in two worker processes. `verify` runs two "
        "claims in a folder that also has the results of another seed; three of ten runs simulate a system that cannot "
        "exchange two folders. Signals are KILL, TERM, HUP and INT. Four of five signals to a driver, all memory "
        "limits and all changes of folders are injected between two writes: before a file operation that is chosen at "
        f"random, counted by an audit hook. The full disk is {disk}. A folder becomes read-only for a process without "
        "the privileges of root. Only the clock of the process jumps, not that of the machine. The worker of another "
        "version has another version of a package that computes.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    folder, count, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3])
    records, seconds, used = run(folder, count, seed)
    failed = [record for record in records if record["error"]]
    for record in sorted(failed, key=lambda record: record["index"]):
        name, subject, *_ = kinds.KINDS[record["kind"]]
        print(f"fault {record['index']}, {subject.name}, {name}: {record['error']}")
    print(
        f"{len(records) - len(failed)} of {len(records)} faults passed; {seconds:.0f} s, {used:.0f} s of processor time"
    )
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(table(records, seed, seconds, used))
    if failed or len(records) != count:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""`make lab`: the ways to a cluster and the faults, on hosts of this machine."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lab import faults, ways
from lab.hosts import ROOT
from lab.laboratory import Laboratory, ended_by_signals, image, lacking
from lab.programs import LabError
from lab.services import tracking
from lab.ways import Way

OWN = "64m"  # the disk of a host, so that it is soon full
SHORT = "link of a worker cut for ever, preparing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "short", "ways", "faults"), default="all")
    parser.add_argument("--only", default="", help="faults and phases: a regular expression of `FAULT, PHASE`")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "lab", help="folder for logs and the table")
    parser.add_argument("--if-possible", action="store_true", help="what this machine lacks is no failure")
    options = parser.parse_args()
    if missing := lacking():
        print(f"the laboratory was not run: it needs {'; '.join(missing)}", file=sys.stderr)
        return 0 if options.if_possible else 2
    torch.set_num_threads(1)  # as packs are trained, to the bit
    options.out.mkdir(parents=True, exist_ok=True)
    began, good = time.monotonic(), True
    every, short = options.what in ("all", "ways"), options.what == "short"

    def go(kind: Callable[[Laboratory], Iterator[Way]]) -> bool:
        """Whether all sweeps of a kind came out as on one machine; in short, the first."""
        good = True
        for done in itertools.islice(kind(lab), 1 if short else None):
            (options.out / f"{done.name}.log").write_text(done.log, encoding="utf-8")
            print(f"{done.name}: {done.found.trials} trials in {done.seconds:.0f} s, weights and histories "
                  + ("as on one machine" if done.good else f"NOT as on one machine: {done.found}"), flush=True)
            good &= done.good
        return good

    laboratory = Laboratory(os.environ.get("PHOTONIC_DATA", ""), OWN, epochs=40 if short else 120)
    with ended_by_signals(), laboratory as lab:
        try:
            with image(lab) if every or short else contextlib.nullcontext() as made:
                server = tracking(lab)
                if every:
                    good &= go(ways.by_hand)
                if every or short:
                    good &= go(ways.by_slurm)
                if options.what != "ways":
                    outcomes = faults.run(lab, server, options.out / "faults.jsonl", SHORT if short else options.only)
                    (options.out / "faults.md").write_text(faults.table(outcomes), encoding="utf-8")
                    good &= all(outcome.good for outcome in outcomes)
                if made:
                    lab.move_in(made.result())
                    good &= go(ways.by_ray_up)
        except LabError as error:
            print(f"error: {error}", file=sys.stderr)
            good = False
    print(f"{'all as it should be' if good else 'FAILED'}, in {time.monotonic() - began:.0f} s; logs are in "
          f"{options.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

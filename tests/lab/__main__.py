"""`make lab`: the ways to a cluster and the faults, on hosts of this machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch

from lab import faults, ways
from lab.hosts import ROOT, LabError, Laboratory, ended_by_signals, install, lacking
from lab.services import tracking

OWN = "64m"  # the disk of a host, so that it is soon full
SHORT = "link of a worker cut for ever, preparing"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make lab", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "short", "ways", "faults"), default="all")
    parser.add_argument("--only", default="", help="faults and phases: a regular expression of `FAULT, PHASE`")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "lab", help="folder for logs and the table")
    options = parser.parse_args()
    if missing := lacking():
        print(f"the laboratory needs {'; '.join(missing)}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)  # as packs are trained, to the bit
    options.out.mkdir(parents=True, exist_ok=True)
    began, good = time.monotonic(), True
    with ended_by_signals(), Laboratory(os.environ.get("PHOTONIC_DATA", ""), OWN) as lab:
        try:
            if options.what in ("all", "short", "ways"):
                install(lab)
            server = tracking(lab)
            kinds = {"short": (ways.by_ray_up, ways.by_slurm), "faults": ()}.get(
                options.what, (ways.by_hand, ways.by_ray_up, ways.by_slurm))
            for kind in kinds:
                for done in kind(lab):
                    (options.out / f"{done.name}.log").write_text(done.log, encoding="utf-8")
                    print(f"{done.name}: {done.found.trials} trials in {done.seconds:.0f} s, weights and histories "
                          + ("as on one machine" if done.good else f"NOT as on one machine: {done.found}"), flush=True)
                    good &= done.good
                    if options.what == "short":
                        break  # the first of each kind
            if options.what in ("all", "short", "faults"):
                only = SHORT if options.what == "short" else options.only
                outcomes = faults.run(lab, server, options.out / "faults.jsonl", only)
                (options.out / "faults.md").write_text(faults.table(outcomes), encoding="utf-8")
                good &= all(outcome.good for outcome in outcomes)
        except LabError as error:
            print(f"error: {error}", file=sys.stderr)
            good = False
    print(f"{'all as it should be' if good else 'FAILED'}, in {time.monotonic() - began:.0f} s; logs are in "
          f"{options.out}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

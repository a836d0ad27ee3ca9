"""What the checks of a report say of the committed results: writes analysis/results/doubts.md.

    python tests/tools/doubts.py

`JUDGED` says of every alarm whether its doubt holds, and why. An alarm without a judgement is an error, and so is a
judgement without an alarm.
"""

from __future__ import annotations

from committed import RESULTS, file_of, manifests, runs_of

from analysis.exhibits.doubts import CHECKS, Doubt, examine
from analysis.exhibits.evidence import Evidence
from analysis.runs import read_runs
from pipeline.experiment.experiment import load_experiment

FILE = RESULTS / "doubts.md"
HOLDS, FALSE = "holds", "false alarm"
UNCOUNTED = (HOLDS, "its description speaks of tries, and nobody noted how many")
JUDGED: dict[tuple[str, str], tuple[str, str]] = {
    ("alignment_heatmap", "edge"): (HOLDS, "the map ends where its best cells are"),
    ("batch_size", "edge"): (HOLDS, "at equal epochs fewer records a batch are more steps, and 64 is the fewest tried"),
    ("certified_scattering_mnist", "origin"): UNCOUNTED,
    ("label_large", "origin"): UNCOUNTED,
    ("label_plain", "origin"): UNCOUNTED,
    ("leekifer_hybrid", "effort"): (HOLDS, "the better of two readings of the hybrid stands beside one of the others"),
    ("leekifer_hybrid", "seeds"): (HOLDS, "n = 1 throughout"),
    ("networks", "edge"): (HOLDS, "40 epochs do better than 20 with half the step, and more were not tried"),
    ("networks", "effort"): (HOLDS, "BP and DFA were tuned, and the hybrid takes over their settings"),
    ("table1_mnist", "flat"): (HOLDS, "without privacy BP has 97.2%: its private step is too small for noise to show"),
    ("table1_seeds", "flat"): (HOLDS, "without privacy BP has 87.1%: its private step is too small for noise to show"),
    ("table1_seeds", "origin"): UNCOUNTED,
    ("tau_h", "edge"): (HOLDS, "of BP the largest bound is the best one tried"),
}


def evidence_of(name: str) -> Evidence:
    """The committed runs of a sweep."""
    experiment = load_experiment(file_of(name))  # first, as it imports plugins of the runs
    return Evidence.of(read_runs(runs_of(name)), experiment)


def page() -> str:
    """The checks by how often they fire, every alarm with its judgement, and the sweeps without one, in Markdown.

    Raises:
        ValueError: for an alarm without a judgement, or a judgement without an alarm.
    """
    found = {name: examine(evidence_of(name)) for name in manifests()}
    alarms: dict[tuple[str, str], Doubt] = {(name, doubt.check): doubt for name, doubts in found.items()
                                            for doubt in doubts}
    if odd := alarms.keys() ^ JUDGED.keys():
        raise ValueError(f"JUDGED: must have the alarms that there are, differs in {sorted(odd)}")
    lines = ["# Doubts", "",
             f"What the checks of a report ([doubts](../../docs/reports.md#doubts)) say of the {len(found)} sweeps "
             "here; `python tests/tools/doubts.py` writes this page. A false alarm is a doubt that does not hold.", "",
             "| check | sweeps on which it fires | false alarms |", "|---|---:|---:|"]
    for check in (check.__name__ for check in CHECKS):
        own = [verdict for (_, name), (verdict, _) in JUDGED.items() if name == check]
        lines.append(f"| {check} | {len(own)} | {own.count(FALSE)} |")
    lines += ["", "| sweep | check | what it says | judged | why |", "|---|---|---|---|---|"]
    for (name, check), doubt in alarms.items():
        verdict, why = JUDGED[name, check]
        lines.append(f"| {name} | {check} | {doubt.sentence.rpartition(';')[0]} | {verdict} | {why} |")
    sound = [name for name, doubts in found.items() if not doubts]
    return "\n".join([*lines, "", f"No check fires on {', '.join(sound)}."]) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")

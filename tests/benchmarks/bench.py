"""`make bench`: how far a training step is from its matrix products alone, and what accounting and tracking cost.

Prints a table and writes `bench.json` (name -> number) and `bench_machine.json` (what it was measured on). The network
is that of Table 1, 784-512-512-10 at batch 256, on one thread, which is what a sweep gives a pack. Names:

    <algorithm>_<mechanism>[_pack<R>]_step_over_floor_<precision>   step over its products, R trials in one pack
    dfa_<mechanism>_speedup_over_hand_written_<precision>   a step of DFA in plain torch, not private, over ours
    dpsgd_speedup_over_opacus_<mode>    Opacus' step over that of bp with per_example
    <integer or secure>_step_over_float32_<size>    a step in integers, by noise, over one in float32: 784-128-10 at
                                        batch 2048, 784-512-512-10 at 256, 4608-128-10 at 8192
    small_pack<R>_speedup               R steps over one of a pack, in the quickstart's network
    width<W>_..., batch<m>_...          of private DFA in float32, 784-W-W-10 and 784-512-512-10: ms a step, and over
                                        its products
    opu_simulated_speedup_over_lightonml    lightonml's simulated projection of a batch over ours
    table1_wall_over_compute            a sweep's wall time over (training time of its trials / workers)
    table1_driver_cpu_share             CPU time of its driver over its wall time, start and end included
    stub_trials_per_second              of a sweep of trials that train nothing, from Ray's start to its end
    stub_driver_cpu_seconds_per_trial   its driver's CPU time, which other work on the machine changes little
    stub_driver_memory_ratio            its driver's memory when all trials have ended over that at a fifth of them
    own_<network>_<algorithm>[_secure|_alone]_step_over_opacus_hooks    of a user's network, per record
    own_perceptron_<algorithm>_step_over_built_in   784-512-512-10 as a module, over the built-in one
    ..._cpu_seconds, ..._mebibytes      of a command: a dry run of the quickstart, one of the file with the widest
                                        features, and the status of a sweep; the processor's time, and memory at most
    wide_pack_cpu_seconds, wide_pack_again_cpu_seconds      to prepare a pack with the widest features, and the next one
    ..._seconds                         wall time
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest import mock

import torch
from rounds import keep_freed_memory, machine, markdown, milliseconds, quotient, seconds, take_turns
from simulated_opu import opened
from steps import (
    ALONE,
    HandWritten,
    floor,
    opacus_step,
    own_network_step,
    records,
    training_of,
    training_step,
    with_features,
)

from pipeline import network
from pipeline.accounting import account, curves
from pipeline.accounting.event import PrivacyEvent
from pipeline.experiment.experiment import load_experiment
from pipeline.experiment.plan import Grid
from pipeline.experiment.plugins import load_plugins
from pipeline.learning.feedback.projection import HardwareOpuProjector, SimulatedOpuProjector
from pipeline.sweep.run import run_sweep
from pipeline.tracking.store import Store
from pipeline.trials.config import TrialConfig
from pipeline.trials.part import PARTS
from pipeline.trials.records import EpochRecord

ROOT = Path(__file__).parents[2]
MECHANISMS = {"plain": {}, "private": {"mechanism": "photonic", "sigma": 0.1},
              "per_example": {"mechanism": "per_example", "noise_multiplier": 1.0},
              "component": {"mechanism": "component", "noise_multiplier": 1.0}}
PRECISIONS = {"fp32": "float32", "reduced": "bfloat16"}
ALGORITHMS = ("bp", "dfa", "tdfa", "pdfa")
PACKS = (4, 16)
TARGETS = {  # name: (at most, at least)
    **{f"{algorithm}_private_step_over_floor_{precision}": (most, 0.0) for algorithm in ("dfa", "pdfa")
       for precision, most in (("fp32", 1.5), ("reduced", 2.0))},
    "dfa_private_speedup_over_hand_written_reduced": (math.inf, 1.5),
    "dpsgd_speedup_over_opacus_ghost": (math.inf, 3.0),
    "dpsgd_speedup_over_opacus_hooks": (math.inf, 40.0),
    "pld_3000_steps_seconds": (2.0, 0.0),
    "pld_3000_steps_cached_seconds": (1e-3, 0.0),
    "pld_without_replacement_seconds": (2.0, 0.0),
    "photonic_account_seconds": (5e-3, 0.0),
    "integer_step_over_float32_small": (0.5, 0.0),
    "integer_step_over_float32_wide": (0.9, 0.0),
    "integer_step_over_float32_features": (0.32, 0.0),
    "secure_step_over_float32_small": (0.6, 0.0),
    "secure_step_over_float32_wide": (1.0, 0.0),
    "secure_step_over_float32_features": (0.4, 0.0),
    **{f"own_cnn_{kind}_step_over_opacus_hooks": (most, 0.0) for kind, most in (
        ("bp", 0.75), ("dfa", 0.75), ("bp_secure", 1.4), ("dfa_secure", 1.4), ("bp_alone", 8.0))},
    **{f"own_transformer_{kind}_step_over_opacus_hooks": (most, 0.0) for kind, most in (
        ("bp", 0.65), ("dfa", 0.6), ("bp_secure", 1.7), ("dfa_secure", 1.7), ("bp_alone", 7.0))},
    **{f"own_perceptron_{algorithm}_step_over_built_in": (1.2, 0.0) for algorithm in ("bp", "dfa")},
    "opu_simulated_speedup_over_lightonml": (math.inf, 10.0),
    "dry_run_of_wide_features_cpu_seconds": (10.0, 0.0),
    "dry_run_of_wide_features_mebibytes": (1024.0, 0.0),
    "wide_pack_again_cpu_seconds": (0.1, 0.0),
    "stub_trials_per_second": (math.inf, 20.0),
    "stub_driver_memory_ratio": (1.05, 0.0),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        base: settings of all steps.
        rounds, visit_seconds: of `take_turns`.
        sweep: settings that replace those of `experiments/ohana2021/table1.yaml` in the sweep.
        integers: settings of steps in integers, by name.
        trials: of those, how many.
        stubs: trials of the sweep that trains nothing.
        widths, batches: of the networks and of the batches whose steps are compared.
    """

    base: dict[str, object]
    rounds: int
    visit_seconds: float
    sweep: dict[str, object]
    integers: Mapping[str, dict[str, object]]
    trials: int | None = None
    stubs: int = 1000
    widths: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    batches: tuple[int, ...] = (64, 1024)


FULL = Size({"alignment_batches": 0}, 11, 0.06, {"epochs": 3}, {
    "small": {"hidden": (128,), "batch_size": 2048}, "wide": {"hidden": (512, 512), "batch_size": 256},
    "features": {"features": "patches", "hidden": (128,), "batch_size": 8192, "input_norm": 3.94}})
DIGITS = {"dataset": "digits", "batch_size": 32}
TINY = Size({**DIGITS, "hidden": (16, 16), "alignment_batches": 0}, 2, 0.002,
            {**DIGITS, "hidden": (16, 16), "epochs": 1}, {"small": {}}, trials=2, stubs=5, widths=(8,),
            batches=(64,))


def step_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """Steps over floors and, in packs, over R floors."""
    data = records(TrialConfig(**size.base).dataset)
    for precision, dtype in PRECISIONS.items():
        contenders: dict[str, Callable[[], object]] = {}
        floors = {}
        for mechanism, algorithm in itertools.product(MECHANISMS, ALGORITHMS):
            if dtype != "float32" and mechanism in ("per_example", "component"):
                continue  # certified bounds do not cover rounding, and the settings refuse it
            config = TrialConfig(**{**size.base, **MECHANISMS[mechanism], "algorithm": algorithm, "arithmetic": dtype})
            for replicas in (1, *(PACKS if (algorithm, mechanism) == ("dfa", "private") else ())):
                pack = f"_pack{replicas}" if replicas > 1 else ""
                name = f"{algorithm}_{mechanism}{pack}_step_over_floor_{precision}"
                floors[name] = f"floor of {replicas} {'bp' if algorithm == 'bp' else 'dfa'}"
                contenders.setdefault(floors[name], floor(config, replicas))
                contenders[name] = training_step(config, data, replicas)
        times = take_turns(contenders, size.rounds, size.visit_seconds)
        yield from ((name, quotient(times, name, below)) for name, below in floors.items())


def dpsgd_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """Opacus' steps over ours, every batch of the same size."""
    config = TrialConfig(**{**size.base, **MECHANISMS["per_example"], "algorithm": "bp"})
    data = records(config.dataset)
    contenders = {"ours": training_step(config, data),
                  **{mode: opacus_step(config, data, mode) for mode in ("ghost", "hooks")}}
    times = take_turns(contenders, size.rounds, size.visit_seconds)
    for mode in ("ghost", "hooks"):
        yield f"dpsgd_speedup_over_opacus_{mode}", quotient(times, mode, "ours")


def hand_written_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """DFA as it is written by hand, over ours."""
    ours = {f"{mechanism}_speedup_over_hand_written_{precision}":
            TrialConfig(**{**size.base, **MECHANISMS[mechanism], "algorithm": "dfa", "activation": "tanh",
                           "arithmetic": dtype})
            for mechanism in ("plain", "private") for precision, dtype in PRECISIONS.items()}
    config = ours["plain_speedup_over_hand_written_fp32"]
    data = records(config.dataset)
    contenders = {"hand-written": HandWritten(training_of(config, data)),
                  **{name: training_step(trial, data) for name, trial in ours.items()}}
    times = take_turns(contenders, size.rounds, size.visit_seconds)
    yield from ((f"dfa_{name}", quotient(times, "hand-written", name)) for name in ours)


def integer_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """Steps in integers, with seeded and with secret noise, over those in float32."""
    for name, changes in size.integers.items():
        config = TrialConfig(**{**size.base, **MECHANISMS["per_example"], "algorithm": "dfa", "sampler": "poisson",
                                "private_metrics": "withheld", **changes})
        data = records(config.dataset)
        data = data if config.parts.features.raw else with_features(data, config)
        contenders = {kind: training_step(TrialConfig(config.given, **own), data) for kind, own in {
            "float32": {}, "integer": {"arithmetic": "integer"},
            "secure": {"arithmetic": "integer", "noise": "secure"}}.items()}
        times = take_turns(contenders, size.rounds, size.visit_seconds)
        for kind in ("integer", "secure"):
            yield f"{kind}_step_over_float32_{name}", quotient(times, kind, "float32")


def own_network_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """Steps of users' networks over those of Opacus' hooks, per record; a perceptron as a module over the built-in."""
    base = {**DIGITS, "clipping_norm": 1.0, "alignment_batches": 0} if size is TINY else {
        "dataset": "fashion_mnist", "batch_size": 256, "alignment_batches": 0}
    load_plugins(["tempered_cnn", "small_transformer"], ROOT / "experiments" / "networks")
    for name, settings in (("cnn", {"network": "tempered_cnn"}),
                           ("transformer", {"network": "small_transformer", "output_reads": "patches"})):
        settings |= {} if size is FULL else {"tempered_kernel": 2, "tempered_stride": 1} if name == "cnn" else {
            "patch_side": 4, "width": 8}
        trial = {**base, **MECHANISMS["per_example"], **settings, "sampler": "poisson", "records_at_once": 256}
        by_bp = TrialConfig(**trial, algorithm="bp")
        data = records(by_bp.dataset)
        contenders = {"hooks": opacus_step(by_bp, data, "hooks")}
        for algorithm in ("bp", "dfa"):
            config = TrialConfig(**trial, algorithm=algorithm)
            contenders |= {algorithm: own_network_step(config, data),
                           f"{algorithm}_secure": own_network_step(dataclasses.replace(
                               config, noise="secure", private_metrics="noisy"), data)}
        contenders["bp_alone"] = own_network_step(by_bp, data, alone=True)
        times = take_turns(contenders, size.rounds, size.visit_seconds)
        for kind in list(contenders)[1:]:
            scale = by_bp.batch_size / ALONE if "alone" in kind else 1
            yield f"own_{name}_{kind}_step_over_opacus_hooks", scale * quotient(times, kind, "hooks")
    for algorithm in ("bp", "dfa"):
        yield f"own_perceptron_{algorithm}_step_over_built_in", _module_over_built_in(size, algorithm)


def _module_over_built_in(size: Size, algorithm: str) -> float:
    """A step of a perceptron as a module over that of the built-in one."""
    hidden = TrialConfig(**size.base).hidden
    if "bench_perceptron" not in PARTS["network"]:
        @network("bench_perceptron", version=1)
        def build(trial, shape, n_classes):
            widths = [math.prod(shape), *hidden]
            layers = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(*pair), torch.nn.Tanh())
                      for pair in itertools.pairwise(widths)]
            return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], n_classes))
    trial = {**size.base, **MECHANISMS["per_example"], "algorithm": algorithm, "batch_size": size.batches[-1]}
    built_in = TrialConfig(**trial)
    data = records(built_in.dataset)
    module = TrialConfig(**{name: value for name, value in trial.items() if name not in ("hidden", "activation")},
                         network="bench_perceptron", records_at_once=512)
    times = take_turns({"module": training_step(module, data), "built-in": training_step(built_in, data)},
                       size.rounds, size.visit_seconds)
    return quotient(times, "module", "built-in")


def pack_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """What packs are for: networks whose steps are mostly small operations."""
    config = TrialConfig(**DIGITS, **MECHANISMS["private"], hidden=(64, 64), alignment_batches=0)
    data = records("digits")
    contenders = {replicas: training_step(config, data, replicas) for replicas in (1, *PACKS)}
    times = take_turns(contenders, size.rounds, size.visit_seconds)
    for replicas in PACKS:
        yield f"small_pack{replicas}_speedup", replicas * quotient(times, 1, replicas)


def size_ratios(size: Size) -> Iterator[tuple[str, float]]:
    """Steps by hidden width and by batch size, beside their products alone."""
    cases = {f"width{width}": {"hidden": (width, width)} for width in size.widths}
    cases |= {f"batch{m}": {"batch_size": m} for m in size.batches}
    contenders: dict[str, Callable[[], object]] = {}
    for name, changes in cases.items():
        config = TrialConfig(**{**size.base, **MECHANISMS["private"], "algorithm": "dfa", **changes})
        contenders |= {name: training_step(config, records(config.dataset)), f"floor {name}": floor(config)}
    times = take_turns(contenders, size.rounds, size.visit_seconds)
    for name in cases:
        yield f"{name}_step_milliseconds", milliseconds(times, name)
        yield f"{name}_step_over_floor", quotient(times, name, f"floor {name}")


def accounting_seconds(size: Size) -> Iterator[tuple[str, float]]:
    """Certified epsilon of 3,000 steps by privacy-loss distributions, and again; all epsilons of a photonic trial."""
    run = {"noise_multiplier": 1.1, "steps": 3_000, "epochs": 14}
    poisson = PrivacyEvent("poisson", **run, sampling_rate=256 / 54_000)
    fixed = PrivacyEvent("without_replacement", **run, N=54_000, m=256)
    events = {"pld_3000_steps": poisson, "pld_3000_steps_cached": poisson, "pld_without_replacement": fixed}
    spent: dict[str, list[float]] = {name: [] for name in (*events, "photonic_account")}
    for _ in range(3):
        PrivacyEvent.value.cache_clear()
        curves.poisson_losses.cache_clear()
        curves.without_replacement_losses.cache_clear()
        for name, event in events.items():
            spent[name].append(seconds(functools.partial(event.value, 1e-5), clock=time.perf_counter))
    for number in range(20):
        trial = TrialConfig(**MECHANISMS["private"] | {"sigma": 0.1 + number / 100}, gamma_min=0.25, tau_h_min=0.5,
                            activation_floor=True)
        spent["photonic_account"].append(seconds(functools.partial(account, trial, trial.epochs),
                                                 clock=time.perf_counter))
    yield from ((f"{name}_seconds", statistics.median(of_name)) for name, of_name in spent.items())


def projection_ratio(size: Size) -> Iterator[tuple[str, float]]:
    """What it saves to project in torch what lightonml's simulated device would."""
    e = torch.randint(-1, 2, (1, 256, 10), generator=torch.Generator().manual_seed(0)).float()
    ours = SimulatedOpuProjector(10, 1024, [1], 1.0)
    with HardwareOpuProjector(10, 1024, [1], 1.0, open_opu=lambda n: opened(10, n, 1)) as lightonml:
        times = take_turns({"ours": lambda: ours.project(e), "lightonml": lambda: lightonml.project(e)},
                           size.rounds, size.visit_seconds)
    yield "opu_simulated_speedup_over_lightonml", quotient(times, "lightonml", "ours")


def waiting(size: Size) -> Iterator[tuple[str, float]]:
    """What people wait for before anything trains; the status is that of a sweep whose trials have not begun."""
    quickstart, wide = (ROOT / "experiments" / name for name in ("quickstart.yaml", "certified/certified_beside.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        empty, swept = Path(folder, "empty"), Path(folder, "swept")
        store = Store(root=swept)
        store.open_sweep("quickstart", params={"trials": 48})
        store.close_sweep("FINISHED")
        commands = {"dry_run": ["sweep", str(quickstart), "--dry-run", "--mlruns", str(empty)],
                    "status": ["status", str(quickstart), "--mlruns", str(swept)]}
        if size is FULL:
            commands["dry_run_of_wide_features"] = ["sweep", str(wide), "--dry-run", "--mlruns", str(empty)]
        for name, arguments in commands.items():
            seen = [_cost_of([sys.executable, "-m", "pipeline", *arguments]) for _ in range(size.rounds // 4 + 1)]
            yield f"{name}_cpu_seconds", statistics.median(cpu_seconds for cpu_seconds, _ in seen)
            yield f"{name}_mebibytes", max(mebibytes for _, mebibytes in seen)
    if size is FULL:
        yield from _preparation(load_experiment(wide).trials[0])


def _cost_of(command: list[str]) -> tuple[float, float]:
    """CPU seconds and the largest memory in MiB of a process and those that it waited for."""
    # A small process starts it: a child begins with the largest memory of its parent.
    program = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
               "r = resource.getrusage(resource.RUSAGE_CHILDREN); print(r.ru_utime + r.ru_stime, r.ru_maxrss / 1024)")
    done = subprocess.run([sys.executable, "-c", program, *command], stdout=subprocess.PIPE, text=True, check=True,
                          cwd=ROOT)
    cpu_seconds, mebibytes = map(float, done.stdout.split())
    return cpu_seconds, mebibytes


def _preparation(trial: TrialConfig) -> Iterator[tuple[str, float]]:
    """CPU seconds to prepare two packs of a trial, one after the other, on random features of a whole data set."""
    data = with_features(records(trial.dataset), trial)
    for name in ("wide_pack", "wide_pack_again"):
        yield f"{name}_cpu_seconds", seconds(lambda: training_of(trial, data).close(), clock=time.thread_time)


def table1_sweep(size: Size) -> tuple[str, dict[str, float]]:
    """What was swept; its wall time over (training time / workers), and its driver's share of a core, both from Ray's
    start to its end."""
    real = "dataset" not in size.sweep and bool(os.environ.get("PHOTONIC_DATA"))
    settings = size.sweep if real else {**size.sweep, **DIGITS, "epochs": size.sweep["epochs"] * 5}
    experiment = load_experiment(ROOT / "experiments/ohana2021/table1.yaml")
    trials = tuple(dataclasses.replace(t, **settings) for t in experiment.trials[: size.trials])
    workers, cpu = os.cpu_count() or 1, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = run_sweep(dataclasses.replace(experiment, plan=Grid(trials)), root=Path(folder), workers=workers,
                           quiet=True)
    if result.finished != len(trials):
        raise RuntimeError(f"the sweep finished {result.finished} of {len(trials)} trials: {result.failed}")
    what = (f"{len(trials)} trials of table1.yaml on {trials[0].dataset}, {trials[0].epochs} epochs, "
            f"{workers} workers, {result.wall_seconds:.0f} s")
    return what, {"table1_wall_over_compute": result.wall_seconds / (result.compute_seconds / workers),
                  "table1_driver_cpu_share": (time.process_time() - cpu) / result.wall_seconds}


def stub_sweep(size: Size) -> Iterator[tuple[str, float]]:
    """What Ray and MLflow cost by themselves, in a driver of its own, whose memory it is."""
    done = subprocess.run([sys.executable, __file__, "--stubs", str(size.stubs)], stdout=subprocess.PIPE, text=True,
                          check=True)
    seen = json.loads(done.stdout)
    yield "stub_trials_per_second", size.stubs / seen["wall_seconds"]
    yield "stub_driver_cpu_seconds_per_trial", seen["cpu_seconds"] / size.stubs
    yield "stub_driver_memory_ratio", seen["memory"][1] / seen["memory"][0]


def sweep_stubs(n: int) -> dict[str, object]:
    """Sweep `n` trials that train nothing: seconds from before Ray starts until it has ended, the driver's CPU seconds,
    and its pages in memory when a fifth and when all of the trials have ended (Linux only)."""
    sys.path.insert(0, str(ROOT / "tests" / "tools"))
    import sweep_stub
    from ray import cloudpickle  # after pipeline.sweep, which sets what Ray reads when it is imported

    cloudpickle.register_pickle_by_value(sweep_stub)  # workers cannot import from the folder of the tests
    trials = sweep_stub.grid(("dfa",), n, mechanism="photonic", sigma=0.1)
    ended, memory, log = 0, [], Store.log

    def counted(store: Store, records: list[EpochRecord]) -> None:
        nonlocal ended
        log(store, records)
        ended += sum(record.outcome is not None for record in records)
        while len(memory) < 2 and ended >= (n / 5, n)[len(memory)]:
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]))

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Store, "log", counted):
        began, cpu = time.perf_counter(), time.process_time()
        result = run_sweep(sweep_stub.experiment(trials, pack_size=0), root=Path(folder, "mlruns"),
                           workers=os.cpu_count(), quiet=True,
                           trainer=functools.partial(sweep_stub.train, folder=Path(folder), seconds=0.0))
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    if result.finished != n:
        raise RuntimeError(f"the sweep finished {result.finished} of {n} trials: {result.failed}")
    return {"wall_seconds": wall, "cpu_seconds": cpu, "memory": memory}


def table(numbers: dict[str, float]) -> str:
    """All numbers in Markdown, beside what is aimed at."""
    rows = []
    for name, value in numbers.items():
        most, least = TARGETS.get(name, (math.inf, 0.0))
        target = f"<= {most:g}" if most < math.inf else f">= {least:g}" if least else ""
        verdict = ("met" if least <= value <= most else "missed") if target else ""
        rows.append((name, value, target, verdict))
    return markdown(("name", "measured", "target", ""), rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; 1 where Opacus is missing, which half of the speed-ups compare with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "reports", help="folder of what is written")
    parser.add_argument("--tiny", action="store_true", help="a small network and few rounds: does it run at all?")
    parser.add_argument("--stubs", type=int, help="only sweep so many trials that train nothing; prints JSON")
    options = parser.parse_args(arguments)
    if options.stubs:
        print(json.dumps(sweep_stubs(options.stubs)))
        return 0
    if importlib.util.find_spec("opacus") is None:
        print("opacus: is not installed, and DP-SGD is compared with it; `pip install '.[test]'` brings it",
              file=sys.stderr)
        return 1
    size = TINY if options.tiny else FULL
    torch.set_num_threads(1)
    keep_freed_memory()
    facts = machine()
    numbers: dict[str, float] = {}
    for part in (step_ratios, hand_written_ratios, dpsgd_ratios, pack_ratios, size_ratios, integer_ratios,
                 own_network_ratios, accounting_seconds, projection_ratio, waiting, stub_sweep):
        numbers.update(part(size))
    facts["table1_sweep"], of_sweep = table1_sweep(size)
    numbers.update(of_sweep)
    facts["load_average_at_end"] = os.getloadavg()
    print(table(numbers))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in (("bench.json", numbers), ("bench_machine.json", facts)):
        (options.out / name).write_text(json.dumps(content, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make gpu`: is all that is computed on a GPU right, and how fast is it.

Needs torch, numpy, scipy, PyYAML, dp-accounting and safetensors; no network, no Ray, no MLflow, no pandas. With Opacus
DP-SGD is compared with it; with lightonml Table 1 has its PDFA trials; with PHOTONIC_DATA it is trained on
Fashion-MNIST, otherwise on random pixels, which take as long. Prints tables and writes `gpu.json`:

    machine     what it was measured on
    checks      what must agree with the CPU, or with itself: how far apart, and how far it may be
    peak        TFLOP/s of one large product, by precision
    packs       a step of 1 to 256 trials of Table 1's network, as it is and as a CUDA graph, beside its products
    table1      Table 1 with several seeds, in one process
    dpsgd       Opacus' step over ours

`--device cpu --small` runs the same lines on a CPU, with small networks; a step is then called and not captured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from rounds import Times, keep_freed_memory, machine, markdown, milliseconds, quotient, take_turns
from steps import floor, opacus_step, products, random_records, training_of

from pipeline.experiment.experiment import load_experiment
from pipeline.learning.data.dataset import Dataset, load
from pipeline.learning.feedback.projection import GaussianProjector
from pipeline.learning.randomness import GaussianNoise
from pipeline.learning.training import Training
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
# How far an update may be from the CPU's in float32, relative to its length: rounding of factors, carried through.
PRECISIONS = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 2e-2}
INTEGERS = 1e-2  # likewise: an activation that rounding moves over the middle of two integers becomes the other
MECHANISMS = {"none": {}, "photonic": {"sigma": 0.1}, "per_example": {"noise_multiplier": 1.0},
              "component": {"noise_multiplier": 1.0},
              "integers": {"noise_multiplier": 0.2, "mechanism": "per_example", "arithmetic": "integer"}}
ALGORITHMS = ("bp", "dfa", "tdfa", *(["pdfa"] if importlib.util.find_spec("lightonml") else []))
WARM_UP = 3  # steps before a capture, in which the optimizer and the libraries take what memory they keep
DEVIATIONS = 5.0  # standard errors that moments of noise may be from their law


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        base: settings of all steps.
        packs: trials per pack.
        rounds, visit_seconds: of `take_turns`.
        side: of the square matrices whose product is the peak.
        table1: settings that replace those of `experiments/ohana2021/table1.yaml`.
        seeds: of every trial of Table 1.
    """

    base: dict[str, object]
    packs: tuple[int, ...]
    rounds: int
    visit_seconds: float
    side: int
    table1: dict[str, object]
    seeds: int


FULL = Size({"hidden": (512, 512), "batch_size": 256}, tuple(2**k for k in range(9)), 7, 0.2, 8192, {}, 10)
TINY = {"dataset": "digits", "hidden": (16, 16), "batch_size": 32}
SMALL = Size(TINY, (1, 2), 2, 0.001, 64, {**TINY, "train_records": 320, "epochs": 1}, 2)


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that must hold: how far off it is, and how far it may be."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit  # not for nan


class Replayed:
    """In the place of `Training.step`: `training.step = Replayed(training)`. The same steps, in memory that stays.

    A graph holds addresses and no Python. So what changes from step to step is written into buffers beforehand: the
    records' indices, and the noise, whose generators draw outside of the graph. The first steps are taken as they
    are, then one is captured, which does not execute it, and from then on it is replayed. On a CPU the captured
    function is called instead, on the same buffers.

    Steps that measure alignment are not replayed. Inputs lie in a buffer that grows with the largest batch that was
    asked for, so that one evaluation is made first: it must not grow once a graph holds it.

    Args:
        training: with a constant learning rate and full batches, not averaged, its first epoch not begun.

    Raises:
        ValueError: for another training, whose steps differ by more than what is in the buffers.
    """

    def __init__(self, training: Training) -> None:
        c = training.pack.shared
        sources = training.mechanism.noise_sources()
        if (c.schedule != "constant" or c.averaging or not c.parts.sampler.full
                or not all(isinstance(source, GaussianNoise) for source in sources)):
            raise ValueError("training: a graph needs a constant schedule, no averaging, a sampler of full batches and "
                             "Gaussian noise of recorded seeds")
        self._step, self._replay, self._taken = training.step, self._run, 0
        self._indices = torch.zeros(len(training.pack.trials), c.batch_size, dtype=torch.int64, device=training.device)
        self._noise = [(source.next, torch.zeros_like(source.block[:, 0])) for source in sources]
        for source, (_, buffer) in zip(sources, self._noise, strict=True):
            source.next = lambda buffer=buffer: buffer
        for part in ("validation", "test"):
            training.evaluation.count(training.net, part)

    def __call__(self, indices: torch.Tensor,
                 measure_alignment: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `Training.step`."""
        self._indices.copy_(indices)
        for draw, buffer in self._noise:
            buffer.copy_(draw())
        if measure_alignment:
            return self._step(self._indices, measure_alignment=True)
        if self._taken == WARM_UP and self._indices.is_cuda:
            self._replay = self._captured()
        self._taken += 1
        self._replay()
        return self._loss.clone(), None  # the next replay writes to the same place

    def _run(self) -> None:
        self._loss, _ = self._step(self._indices)

    def _captured(self) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph.replay


@contextlib.contextmanager
def products_in(precision: str) -> Iterator[str]:
    """Products of float32 on a GPU as `precision` says, and the setting `arithmetic` that goes with it."""
    backend, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.fp32_precision
    backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield "bfloat16" if precision == "bfloat16" else "float32"
    finally:
        backend.fp32_precision = before


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b||; 0 where both are zero."""
    a, b = a.cpu().double(), b.cpu().double()
    difference = (a - b).norm().item()
    return difference / b.norm().item() if difference else 0.0


def farthest(ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> float:
    """The largest `apart` of all pairs; nan where one of them is."""
    return torch.tensor([apart(a, b) for a, b in zip(ours, theirs, strict=True)], dtype=torch.float64).max().item()


def some_steps(training: Training, n: int = 5) -> list[torch.Tensor]:
    """The first update, loss and alignment, and by how much n steps move the weights."""
    before, batches = training.net.parameters.flat.clone(), training.sampler.epoch()
    loss, alignment = training.step(batches[0], measure_alignment=True)
    first = training.update.flat.clone()
    for indices in batches[1:n]:
        training.step(indices)
    return [first, loss, alignment, training.net.parameters.flat - before]


def trial_of(size: Size, algorithm: str, mechanism: str, noisy: bool) -> TrialConfig:
    """A trial; without noise where numbers are compared with the CPU's, as those of noise depend on the device.

    But that of integers, which exist with noise alone, is drawn on the CPU.
    """
    settings = {"mechanism": mechanism, **MECHANISMS[mechanism]}
    silent = {} if noisy or mechanism == "integers" else dict.fromkeys(MECHANISMS[mechanism], 0.0)
    return TrialConfig(**size.base, algorithm=algorithm, **{**settings, **silent})


def checks(size: Size, device: torch.device) -> Iterator[Check]:
    """All that is checked, with what it came to."""
    here, there = (random_records(TrialConfig(**size.base).dataset, where) for where in (CPU, device))
    yield from agreement_with_the_cpu(size, here, there)
    yield from agreement_with_itself(size, there)
    yield from law_of_noise(device)


def agreement_with_the_cpu(size: Size, here: Dataset, there: Dataset) -> Iterator[Check]:
    """Steps of every algorithm and mechanism; products of less precision where nothing is ternarized, as an error that
    rounding moves over the threshold is another error."""
    for precision, limit in PRECISIONS.items():
        algorithms, mechanisms = (ALGORITHMS, MECHANISMS) if precision == "float32" else (("bp", "dfa"), ("photonic",))
        for algorithm, mechanism in itertools.product(algorithms, mechanisms):
            config = trial_of(size, algorithm, mechanism, noisy=False)
            with products_in(precision) as arithmetic:
                of_this = config if config.exact else dataclasses.replace(config, arithmetic=arithmetic)
                of_device = training_of(of_this, there, 2)
                value = farthest(some_steps(of_device), some_steps(training_of(config, here, 2)))
            yield Check(f"{algorithm} {mechanism} {precision}: steps as on a CPU", value,
                        INTEGERS if config.exact else limit)
    e = torch.randint(-1, 2, (2, 40, 10), generator=torch.Generator().manual_seed(0)).float()
    projected = [GaussianProjector(10, 100, [1, 2], 1.0, x.train_x.device).project(e.to(x.train_x.device))
                 for x in (there, here)]
    yield Check("gaussian projector: as on a CPU", apart(*projected), PRECISIONS["float32"])


def agreement_with_itself(size: Size, data: Dataset) -> Iterator[Check]:
    """A replica in a pack and alone; replayed steps and plain ones; a restored training and one that was not stopped;
    no step waits for the device."""
    config = trial_of(size, "dfa", "photonic", noisy=True)
    pack, alone = (some_steps(training_of(config, data, n)) for n in (4, 1))
    yield Check("a replica in a pack and alone", farthest((x[:1] for x in pack), alone), PRECISIONS["float32"])

    for mechanism in ("photonic", "per_example"):
        plain, replayed = (training_of(trial_of(size, "bp", mechanism, noisy=True), data, 2) for _ in range(2))
        replayed.step = Replayed(replayed)
        value = farthest(some_steps(replayed, 8), some_steps(plain, 8))
        yield Check(f"{mechanism}: replayed steps and plain ones", value, PRECISIONS["float32"])

    first, second = (training_of(config, data, 2) for _ in range(2))
    some_steps(first)
    second.restore(*first.capture())
    same = all(torch.equal(a, b) for a, b in zip(some_steps(second), some_steps(first), strict=True))
    yield Check("a restored training goes on with other bits", float(not same), 0.0)  # 1 if so, here and below

    # Integers wait: their noise comes from the CPU.
    for algorithm, mechanism in itertools.product(ALGORITHMS, MECHANISMS.keys() - {"integers"}):
        training = training_of(trial_of(size, algorithm, mechanism, noisy=True), data, 2)
        batches = training.sampler.epoch()
        training.step(batches[0])
        yield Check(f"{algorithm} {mechanism}: a step waits for the device", float(_waits(training, batches[1])), 0.0)


def _waits(training: Training, indices: torch.Tensor) -> bool:
    """Whether torch refuses a step that must not wait for a GPU; a CPU has nothing to wait for."""
    if training.device.type == "cpu":
        return False
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step(indices)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def law_of_noise(device: torch.device) -> Iterator[Check]:
    """Mean, standard deviation and correlation of the noise of two trials, in standard errors from their law."""
    sigmas = (0.5, 2.0)
    drawn = GaussianNoise([0, 1], sigmas, (256, 256), device).next().cpu().double().flatten(1)
    root_n = math.sqrt(drawn.shape[1])
    scaled = drawn / torch.tensor(sigmas, dtype=torch.float64).unsqueeze(1)
    yield Check("noise: mean", scaled.mean(dim=1).abs().max().item() * root_n, DEVIATIONS)
    yield Check("noise: standard deviation", (scaled.std(dim=1) - 1).abs().max().item() * root_n * math.sqrt(2),
                DEVIATIONS)
    yield Check("noise: correlation of two trials", abs((scaled[0] * scaled[1]).mean().item()) * root_n, DEVIATIONS)


def peaks(size: Size, device: torch.device) -> dict[str, float]:
    """TFLOP/s of one product of large square matrices, random numbers in them, by precision."""
    found = {}
    for precision in PRECISIONS:
        with products_in(precision) as dtype:
            a, b = (torch.randn(size.side, size.side, device=device).to(getattr(torch, dtype)) for _ in range(2))
            times = take_turns({"peak": lambda a=a, b=b: a @ b}, size.rounds, size.visit_seconds, device)
        found[precision] = 2 * size.side**3 / milliseconds(times, "peak") / 1e9
    return found


def pack_rows(size: Size, device: torch.device, peak: dict[str, float]) -> Iterator[dict[str, object]]:
    """A step of R trials with the photonic mechanism: plain, replayed, and its products alone."""
    data = random_records(TrialConfig(**size.base).dataset, device)
    for precision, replicas in itertools.product(PRECISIONS, size.packs):
        gc.collect()  # a training whose steps are replayed refers to itself, and its memory is the GPU's
        with products_in(precision) as arithmetic:
            config = dataclasses.replace(trial_of(size, "dfa", "photonic", noisy=True), alignment_batches=0,
                                         arithmetic=arithmetic)
            plain, replayed = (training_of(config, data, replicas) for _ in range(2))
            replayed.step = Replayed(replayed)
            times = take_turns({"plain": _in_turn(plain), "replayed": _in_turn(replayed),
                                "products": floor(config, replicas, device)}, size.rounds, size.visit_seconds, device)
        flop = 2 * replicas * sum(math.prod(shape) for shape, *_ in products(config))
        tflops = {name: flop / milliseconds(times, name) / 1e9 for name in ("replayed", "products")}
        yield {"precision": precision, "trials": replicas,
               **{f"{name}_ms": milliseconds(times, name) for name in times},
               "replayed_ms_per_trial": milliseconds(times, "replayed") / replicas,
               "replayed_over_products": quotient(times, "replayed", "products"),
               **{f"{name}_tflops": rate for name, rate in tflops.items()},
               "products_over_peak": tflops["products"] / peak[precision]}


def _in_turn(training: Training) -> Callable[[], object]:
    """A step per call, on the batches of an epoch in turn; what a capture needs lies behind it."""
    batches = itertools.cycle(training.sampler.epoch())
    for _ in range(WARM_UP + 1):
        training.step(next(batches))
    return lambda: training.step(next(batches))


def table1(size: Size, device: torch.device) -> dict[str, object]:
    """All trials of Table 1 with every seed, each kind of trial as one pack, its steps replayed."""
    trials = [dataclasses.replace(t, **size.table1, seed=seed)
              for t in load_experiment(ROOT / "experiments/ohana2021/table1.yaml").trials for seed in range(size.seeds)]
    chosen = [t for t in trials if t.algorithm in ALGORITHMS]
    real = bool(os.environ.get("PHOTONIC_DATA")) and not size.table1
    dataset = chosen[0].dataset
    data = load(dataset, device=device) if real else random_records(dataset, device)
    packs: dict[str, list[TrialConfig]] = {}
    for trial in chosen:
        packs.setdefault(trial.pack_key, []).append(trial)
    rows = [_trained(Pack(tuple(pack)), data, device) for pack in packs.values()]
    return {"trials": len(chosen), "left_out": len(trials) - len(chosen), "epochs": chosen[0].epochs,
            "data": dataset if real else "random pixels", "seconds": sum(row["seconds"] for row in rows), "packs": rows}


def _trained(pack: Pack, data: Dataset, device: torch.device) -> dict[str, object]:
    began = time.perf_counter()
    training = Training(pack, data, device)
    training.step = Replayed(training)
    records = []
    while not training.ended:
        records += training.run_epoch()
    training.close()
    ended = [record for record in records if record.outcome]
    return {"algorithm": pack.shared.algorithm, "mechanism": pack.shared.mechanism, "trials": len(pack.trials),
            "seconds": time.perf_counter() - began,
            "diverged": sum(record.outcome.status == "diverged" for record in ended),
            "mean_test_accuracy": sum(record.metrics["test/accuracy"] for record in ended) / len(ended)}


def dpsgd(size: Size, device: torch.device) -> dict[str, float]:
    """Opacus' steps over ours: one trial alone, and one of the largest pack."""
    config = dataclasses.replace(trial_of(size, "bp", "per_example", noisy=True), alignment_batches=0)
    data, most = random_records(config.dataset, device), max(size.packs)
    contenders = {}
    for replicas in (1, most):
        training = training_of(config, data, replicas)
        training.step = Replayed(training)
        contenders[f"ours_{replicas}"] = _in_turn(training)
    opacus = ("ghost", "hooks") if importlib.util.find_spec("opacus") else ()
    contenders |= {mode: opacus_step(config, data, mode) for mode in opacus}
    times: Times = take_turns(contenders, size.rounds, size.visit_seconds, device)
    return {**{f"{name}_ms": milliseconds(times, name) for name in times},
            **{f"{mode}_over_one_of_{replicas}": replicas * quotient(times, mode, f"ours_{replicas}")
               for mode in opacus for replicas in (1, most)}}


def tables(found: dict) -> str:
    """What was found, in Markdown."""
    checked = [(c["name"], c["value"], c["limit"], "" if c["holds"] else "FAILED") for c in found["checks"]]
    packs, whole = found["packs"], found["table1"]
    of_packs = [tuple(row.values()) for row in whole["packs"]]
    return "\n\n".join([
        markdown(("check", "off by", "may be", ""), checked),
        markdown(("precision", "TFLOP/s of one large product"), list(found["peak"].items())),
        markdown(tuple(name.replace("_", " ") for name in packs[0]), [tuple(row.values()) for row in packs]),
        markdown(tuple(name.replace("_", " ") for name in whole["packs"][0]), of_packs),
        f"Table 1: {whole['trials']} trials ({whole['left_out']} left out), {whole['epochs']} epochs, {whole['data']}, "
        f"{whole['seconds']:.3g} s",
        markdown(("DP-SGD", ""), list(found["dpsgd"].items()))])


def main(arguments: list[str] | None = None) -> int:
    """Check, measure, print, write; 1 where there is no such device, or where a check does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="small networks and few rounds: does it run at all?")
    parser.add_argument("--out", type=Path, default=ROOT / "reports", help="folder of gpu.json")
    options = parser.parse_args(arguments)
    device, size = torch.device(options.device), SMALL if options.small else FULL
    if device.type == "cuda" and not torch.cuda.is_available():
        print("device: torch sees no CUDA device; `--device cpu --small` is a dry run", file=sys.stderr)
        return 1
    keep_freed_memory()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    found: dict = {"machine": {**machine(), "gpu": gpu, "cuda": torch.version.cuda}}
    found["checks"] = [{**dataclasses.asdict(check), "holds": check.holds} for check in checks(size, device)]
    found["peak"] = peaks(size, device)
    found["packs"] = list(pack_rows(size, device, found["peak"]))
    found["table1"] = table1(size, device)
    found["dpsgd"] = dpsgd(size, device)
    print(tables(found))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.json").write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(check["holds"] for check in found["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())

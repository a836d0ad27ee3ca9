"""`opu_physical`: light, camera and retrieval, against the formulas of docs/optics.md."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.experiment.experiment import load_experiment
from pipeline.learning import randomness
from pipeline.learning.feedback.physical import PhysicalOpuProjector
from pipeline.learning.feedback.projection import SimulatedOpuProjector, make_projector
from pipeline.learning.opu import simulated_device
from pipeline.learning.run import train
from pipeline.learning.training import Training
from pipeline.trials.camera import ZYLA_4_2, Camera, camera_of
from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack
from pipeline.trials.streams import transmission
from pipeline.trials.unused import check_used

IDEAL = Camera(photons=1e3, reference_ratio=2.0, dark_counts=0.0, read_noise=0.0, full_well=0.0, adc_bits=0, std=0.5,
               n_inputs=10)
PHYSICAL = dict(algorithm="pdfa", projector="opu_physical", dataset="digits", hidden=(16, 16), batch_size=64, epochs=2,
                alignment_batches=0)
CPU = torch.device("cpu")


def projector(*cameras, n=40, seeds=None, noise_seeds=None):
    count = len(cameras)
    return PhysicalOpuProjector(10, n, seeds or [7] * count, cameras[0].std, cameras=cameras,
                                noise_seeds=noise_seeds or list(range(count)))


def ternary(*shape, seed=0):
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).float()


def one_and_minus_one(m):
    """m errors with one +1 and one -1, of 10 components."""
    e = torch.zeros(m, 10)
    at = torch.rand(m, 10, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    return e.scatter_(1, at[:, :1], 1.0).scatter_(1, at[:, 1:2], -1.0)[None]


@pytest.mark.parametrize("ratio", [0.5, 20.0])
def test_without_noise_it_is_the_simulated_projection(ratio):
    e = ternary(2, 31, 10)
    camera = dataclasses.replace(IDEAL, reference_ratio=ratio, dark_counts=3.0)
    ours = projector(camera, camera, n=40, seeds=[5, 6])
    linear = SimulatedOpuProjector(10, 40, [5, 6], IDEAL.std)
    torch.testing.assert_close(ours.matrices, linear.matrices)
    torch.testing.assert_close(ours.retrieve(ours.expected_counts(e)), linear.project(e), rtol=1e-4, atol=1e-4)
    assert linear.project(e).abs().max() > 2
    device = simulated_device(10, 40, 5, linear=True)
    np.testing.assert_allclose(transmission(5, 10, 40), math.sqrt(10) * device.random_matrix, rtol=1e-6)


def test_full_scale_is_the_mean_count_with_all_mirrors_on():
    ours = projector(IDEAL, n=20_000)
    means = ours.expected_counts(torch.ones(1, 1, 10))
    assert means.shape == (1, 1, 4, 20_000)
    assert means[0, 0, :2].mean().item() == pytest.approx(IDEAL.photons, rel=0.03)
    dark = means[0, 0, 2:]  # nothing is -1: the reference alone
    torch.testing.assert_close(dark, torch.full_like(dark, IDEAL.photons_per_unit * IDEAL.reference**2))


@pytest.mark.parametrize("changes", [
    {}, {"dark_counts": 200.0}, {"read_noise": 20.0}, {"full_well": 1e4, "adc_bits": 8},
    {"photons": 20.0, "reference_ratio": 1.0}, {"photons": 300.0, "dark_counts": 30.0, "read_noise": 5.0},
    {"photons": 0.3, **ZYLA_4_2}])
def test_the_effective_sigma_is_the_noise_that_is_measured(changes):
    """A chi-square test at 1e-6 that accepts sigma and refuses 2/3 and 3/2 of it; the matrix is drawn, hence 3%."""
    camera = dataclasses.replace(IDEAL, **changes)
    ours = projector(camera, n=400)
    e = one_and_minus_one(250)
    x = (ours.project(e) - e @ ours.matrices).double()
    measured = x.std().item()
    assert measured == pytest.approx(camera.effective_sigma, rel=0.03)
    for wrong in (2 / 3, 3 / 2):
        assert measured != pytest.approx(wrong * camera.effective_sigma, rel=0.03)
    assert abs(x.mean().item()) < 5 * measured / math.sqrt(x.numel())
    signal = (e @ ours.matrices).double()
    slope, error = (signal * x).sum() / signal.square().sum(), measured / signal.norm()
    assert abs(slope) < 5 * error  # read noise below 0 is not cut off, or the dark would have less gain


def test_the_experiments_have_the_light_and_the_camera_that_they_say():
    root = Path(__file__).parents[2] / "experiments" / "ohana2021"
    table = load_experiment(root / "optics_table1.yaml").trials
    sigmas = sorted({t.sigma for t in table if t.projector == "opu_simulated"})
    light = sorted((camera_of(t) for t in table if t.projector == "opu_physical"), key=lambda c: -c.photons)
    assert [c.effective_sigma for c in light] == pytest.approx(sigmas, rel=1e-4)
    assert [light[0].with_sigma(sigma).effective_sigma for sigma in sigmas] == pytest.approx(sigmas, rel=1e-12)
    assert all(2 * n * t.feedback_std**2 == 1 for t in table for n in t.hidden)  # E||B e||^2, e with one +1 and one -1
    cameras = {(t.read_noise, t.full_well, t.adc_bits) for t in load_experiment(root / "optics.yaml").trials
               if t.projector == "opu_physical"}
    assert cameras == {(0.0, 0.0, 0), tuple(ZYLA_4_2.values())}


def test_counts_are_poisson():
    ours = projector(IDEAL)
    for mean in (0.3, 7.0, 300.0):
        counts = ours.expose(torch.full((1, 500, 4, 40), mean)).numpy().ravel()
        assert (counts == np.round(counts)).all()
        low, high = (int(stats.poisson.ppf(q, mean)) for q in (0.001, 0.999))
        seen = np.array([np.mean(counts <= k) for k in range(low, high + 1)])
        assert abs(seen - stats.poisson.cdf(range(low, high + 1), mean)).max() < 2.5 / math.sqrt(counts.size)


def test_full_well_and_adc():
    camera = dataclasses.replace(IDEAL, full_well=255.0, adc_bits=4, read_noise=2.0)
    assert camera.adc_step == 17.0
    read = projector(camera).expose(torch.linspace(0, 600, 40).expand(1, 300, 4, 40))
    levels = torch.unique(read)
    assert torch.equal(levels, torch.arange(16) * 17.0)
    assert (read[..., -1] == 255).all() and read[..., 0].max() == 0
    below = projector(dataclasses.replace(camera, read_noise=20.0)).expose(torch.zeros(1, 300, 4, 40))
    assert abs(below.mean().item()) < 5 * 21 / math.sqrt(below.numel())


def test_a_replica_does_not_depend_on_the_others():
    cameras = [dataclasses.replace(IDEAL, photons=100.0 * k, read_noise=float(k % 2)) for k in (1, 2, 3)]
    e, seeds = ternary(3, 21, 10), dict(n=7, seeds=[3, 4, 5], noise_seeds=[6, 7, 8])
    together, padded = projector(*cameras, **seeds), projector(*cameras, **seeds)
    first, second = together.project(e), together.project(e)
    assert not torch.equal(first, second)
    for r, camera in enumerate(cameras):
        alone = projector(camera, n=7, seeds=[3 + r], noise_seeds=[6 + r])
        for joint in (first, second):
            assert torch.equal(alone.project(e[r : r + 1].clone())[0], joint[r])
    empty = torch.cat([e, torch.zeros(3, 6, 10)], dim=1)  # as a batch of another trial of the pack may have it
    assert torch.equal(padded.project(empty)[:, :21], first)
    assert torch.equal(padded.project(e), second)


@pytest.mark.parametrize("call, message", [
    (lambda: projector(IDEAL, seeds=[1, 2]), "cameras: must be 2, one for every replica, got 1"),
    (lambda: projector(IDEAL, IDEAL, noise_seeds=[1, 2, 3]), "noise_seeds: must be 2, one for every replica, got 3"),
    (lambda: projector(IDEAL, dataclasses.replace(IDEAL, full_well=9.0)),
     "cameras: must have one full well and one ADC"),
    (lambda: projector(IDEAL).project(torch.full((1, 1, 10), 0.5)), "an OPU projects -1, 0 and 1 only, got 0.5"),
    (lambda: check_used([TrialConfig(algorithm="dfa", adc_bits=8)]), "adc_bits: is not used with algorithm 'dfa', got "
     "8; use algorithm 'pdfa' with projector 'opu_physical'")])
def test_cameras_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_camera_is_part_of_a_trials_identity_where_it_is_used():
    trial = TrialConfig(**PHYSICAL, photons=50)
    assert trial.canonical()["photons"] == 50 and "sigma" not in trial.canonical()
    assert trial.trial_key != TrialConfig(**PHYSICAL).trial_key and trial.pack_key == TrialConfig(**PHYSICAL).pack_key
    assert trial.pack_key != TrialConfig(**PHYSICAL, full_well=1e4).pack_key
    camera = camera_of(dataclasses.replace(trial, feedback_std=0.1))
    assert (camera.photons, camera.std, camera.n_inputs) == (50.0, 0.1, 10)
    others = dict(photons=5, reference_ratio=3, dark_counts=1, read_noise=2, full_well=9, adc_bits=8)
    well = TrialConfig(**PHYSICAL, full_well=1e4)
    assert len({dataclasses.replace(well, **{k: v}).trial_key for k, v in others.items()} | {well.trial_key}) == 7
    assert not {"photons", "full_well", "adc_bits"} & TrialConfig(algorithm="pdfa").canonical().keys()


@pytest.mark.parametrize("changes", [
    dict(mechanism="photonic", joint_release=True, denoise=True, tau_h=4.0),
    dict(mechanism="per_example", noise_multiplier=0.5, sampler="poisson", read_noise=2.0)])
def test_packs_and_checkpoints_leave_a_trial_as_it_is(changes, digits):
    """Trained alone, in a pack, and in a pack that was stopped after an epoch: the same weights to the last bit."""
    trials = tuple(TrialConfig(**PHYSICAL, **changes, photons=p, seed=s) for p, s in ((20.0, 0), (500.0, 1)))
    ends = [list(train(Pack((trial,)), digits))[-1][0].outcome.weights for trial in trials]
    stopped, resumed = (Training(Pack(trials), digits, CPU) for _ in range(2))
    first = stopped.net.parameters.weights[0][0].numpy().copy()
    stopped.run_epoch()
    resumed.restore(*stopped.capture())
    for alone, together, after in zip(ends, stopped.run_epoch(), resumed.run_epoch(), strict=True):
        for name, weight in alone.items():
            assert np.array_equal(together.outcome.weights[name], weight), name
            assert np.array_equal(after.outcome.weights[name], weight), name
    assert not np.allclose(first, ends[0]["layer_1.weight"])


def test_make_projector_takes_the_trials_own_settings():
    trials = [TrialConfig(**PHYSICAL, photons=p, seed=s, feedback_std=0.3) for p, s in ((10.0, 0), (1e6, 1))]
    e = ternary(2, 100, 10)
    with make_projector(trials, 32, CPU) as ours:
        deviations = (ours.project(e) - torch.bmm(e, ours.matrices)).std(dim=(1, 2))
    assert deviations[0] / deviations[1] == pytest.approx(math.sqrt(1e5), rel=0.1)


def test_on_another_device_nothing_stays_on_the_cpu_and_nothing_waits(monkeypatch):
    """The meta device refuses tensors of two devices, and values that the host would read."""
    asked = []
    monkeypatch.setattr(randomness, "torch_generator", lambda seed, stream, device, *step: asked.append((seed, device)))
    camera = dataclasses.replace(IDEAL, **ZYLA_4_2, dark_counts=0.1)
    ours = PhysicalOpuProjector(10, 33, [1, 2], 0.5, "meta", cameras=[camera, camera], noise_seeds=[3, 4])
    p = ours.project(torch.zeros(2, 5, 10, device="meta"))
    assert p.shape == (2, 5, 33) and p.is_meta
    assert asked == [(seed, torch.device("meta")) for seed in (3, 4, 3, 4)]

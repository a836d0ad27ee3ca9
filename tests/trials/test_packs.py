import pytest

from pipeline.trials.config import TrialConfig
from pipeline.trials.packs import Pack, Resources, cost, default_pack_size, plan
from pipeline.trials.shapes import n_parameters

SIGMAS = (0.0, 0.01, 0.03, 0.05, 0.1, 0.2)
TRIALS = [TrialConfig(algorithm=a, mechanism="photonic", sigma=s) for a in ("bp", "dfa", "pdfa") for s in SIGMAS]


def test_every_trial_is_in_exactly_one_pack_of_its_own_kind():
    packs = plan(TRIALS, Resources(pack_size=4), workers=2)
    keys = [t.trial_key for p in packs for t in p.trials]
    assert sorted(keys) == sorted(t.trial_key for t in TRIALS)
    assert all(len(p.trials) == 3 for p in packs), "6 trials under a limit of 4 make two packs of 3"
    with pytest.raises(ValueError, match="one pack_key, got 2"):
        Pack((TrialConfig(), TrialConfig(batch_size=128)))


def test_packs_that_need_an_opu_come_first_and_long_before_short():
    packs = plan([*TRIALS, TrialConfig(algorithm="dfa", epochs=30)], Resources(pack_size=6), workers=2)
    assert [p.needs_opu for p in packs] == [True, False, False, False]
    assert [cost(p) for p in packs[1:]] == sorted((cost(p) for p in packs[1:]), reverse=True)


def test_default_size_leaves_work_for_every_worker_and_fits_caches():
    small, large = TrialConfig(dataset="digits", hidden=(64, 64), batch_size=32), TrialConfig()
    assert [default_pack_size(small, n, 2, False) for n in (1, 8, 28, 80, 10_000)] == [1, 1, 4, 10, 32]
    assert [default_pack_size(large, 28, 2, on_gpu) for on_gpu in (False, True)] == [2, 4]
    assert default_pack_size(TrialConfig(hidden=(4096, 4096)), 28, 2, False) == 1
    assert n_parameters(small.layers) == 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10


def test_packs_that_have_a_checkpoint_stay_as_they_are():
    kept = Pack((TRIALS[3], TRIALS[0]))
    packs = plan(TRIALS[1:], Resources(pack_size=4), workers=2, kept=[kept])
    assert kept in packs
    keys = sorted(t.trial_key for p in packs for t in p.trials)
    assert keys == sorted(t.trial_key for t in TRIALS), "every trial once, the done one of the kept pack too"

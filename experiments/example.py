# %% [markdown]
# # From one trial to a privacy-utility frontier
#
# Opens as a notebook in VS Code, or in Jupyter with Jupytext; also runs as a script (`python experiments/example.py`).
# Tracks its sweep in `mlruns` and writes figures to `reports/example`, both below the folder that it is run in.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from analysis import frontier, frontier_axes, load_runs
from pipeline import Experiment, TrialConfig, account, privacy_tags, run_sweep, train

out = Path("reports/example")
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## One trial
# Settings that are left out have the defaults that `photonic fields` prints. `target_epsilon` sets the noise.

# %%
settings = dict(dataset="digits", inputs="unit", hidden=(32, 32), mechanism="per_example", sampler="poisson",
                batch_size=128, epochs=6, learning_rate=0.2, feedback_std=0.1)
trial = TrialConfig(**settings, algorithm="dfa", target_epsilon=8.0)
print(trial.trial_key)

# %% [markdown]
# What it will cost is known before it is trained, and what that rests on.

# %%
epsilons = account(trial)
print(*epsilons, sep="\n")
print(privacy_tags(trial)["privacy.notes"])

# %% [markdown]
# `train` hands out a record of every epoch. Here, beside the private trial, one without privacy.

# %%
trials = {"ε ≤ 8": trial, "non-private": TrialConfig(**{**settings, "mechanism": "none"}, algorithm="dfa")}
histories = {name: pd.DataFrame({"epoch": record.epoch, **record.metrics} for record in train(t))
             for name, t in trials.items()}

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name, history in histories.items():
    axes[0].plot(history["epoch"], 100 * history["validation/accuracy"], label=name)
    axes[1].plot(history["epoch"], history["alignment/layer_2"], label=name)
axes[0].set(xlabel="Epoch", ylabel="Validation accuracy (%)")
axes[1].set(xlabel="Epoch", ylabel="Alignment of layer 2 (cosine)")
axes[1].legend()
figure.savefig(out / "history.png")

# %% [markdown]
# ## A sweep
# The trials of an experiment file (`load_experiment`), or a list of them; here the noise multiplier z is given, and
# epsilon follows. They train in parallel and are tracked in MLflow; those that are done are not trained again.

# %%
grid = [TrialConfig(**settings, algorithm=algorithm, noise_multiplier=z)
        for algorithm in ("bp", "dfa") for z in (0.9, 1.8)]
result = run_sweep(Experiment("example", "Certified BP and DFA on digits", tuple(grid)))

# %%
runs = load_runs("example")  # one row per trial
print(runs[["algorithm", "noise_multiplier", "test/accuracy", "epsilon/certified/pld"]])

# %%
points = frontier(runs)
figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
frontier_axes(points, ax)
figure.savefig(out / "frontier.png")

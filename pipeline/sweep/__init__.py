"""Sweeps: the trials of an experiment, trained in parallel with Ray Tune and tracked."""

from __future__ import annotations

import os

# Ray reads these when it is imported; without them it writes tables and warnings over the progress line, reports
# usage, and rebuilds the environment of every worker under `uv run`. What the user has set stays.
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"  # whatever is set: a worker must not go on before it was answered
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# Relative paths stay those of this process; and Tune's snapshots of itself, which nobody reads, need no disk.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000000")
# Tune's own handler of Ctrl-C waits for epochs, and then for workers one by one, without a word.
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")

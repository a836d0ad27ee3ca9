"""Sweeps: train the trials of an experiment in parallel with Ray Tune, and track them."""

from __future__ import annotations

import os

# Ray reads these at import. Without them it writes tables and warnings over the progress line, reports usage, and
# rebuilds the environment of every worker under `uv run`. The user's own values stay.
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"  # overrides the user: a worker must wait for its answer
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# Keep this process's working directory. Do not write Tune's snapshots of itself: nobody reads them.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000000")
# Tune's own handler of Ctrl-C waits silently for epochs, and then for each worker.
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")

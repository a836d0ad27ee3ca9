"""Sweeps: train the trials of an experiment in parallel with Ray Tune, and track them."""

from __future__ import annotations

import os

# Ray reads these at import. Without them it writes tables and warnings over the progress line, reports usage, rebuilds
# the environment of every worker under `uv run`, and listens on all interfaces. The user's own values stay.
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ["TUNE_RESULT_BUFFER_LENGTH"] = "1"  # overrides the user: a worker must wait for its answer
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on all systems; it joins clusters all the same
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
# Keep this process's working directory. Do not write Tune's snapshots of itself: nobody reads them.
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1000000000")
# Tune's own handler of Ctrl-C waits silently for epochs, and then for each worker.
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
# Ray's own messages go to a file: all of them, without colours.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_COLOR_PREFIX", "0")

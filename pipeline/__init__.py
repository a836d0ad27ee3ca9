"""Private training with direct feedback alignment: sweeps over noise, clipping, batch size and algorithm.

For notebooks and scripts, from one trial to a whole sweep (`analysis` reads the tracked results):

    TrialConfig      the settings of one trial; ConfigError names invalid settings
    recommended      a trial with the settings of `preset: recommended`, except the given ones
    account          the epsilons of a trial, before anything is trained; privacy_tags: their assumptions
    train            train trials in this process and get the records of every epoch
    load_model       the trained network of a tracked trial, a torch.nn.Module
    load_dataset     a verified data set
    load_experiment  an experiment file; Experiment and Resources: the same, from Python
    run_sweep        train an experiment's trials in parallel, and track them
    network          register a network of your own, for every algorithm; setting: a setting of it
    table_inputs     where the columns of a declared table stand in its records; table_records: records of a new file

Importing this package imports no torch, Ray or MLflow; names that need them import them on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.package import lazy
from pipeline.trials.config import ConfigError, TrialConfig

if TYPE_CHECKING:
    from pipeline.accounting import privacy_tags
    from pipeline.api import account, load_model, train
    from pipeline.experiment.experiment import Experiment, load_experiment
    from pipeline.experiment.preset import recommended
    from pipeline.learning.data.dataset import load as load_dataset
    from pipeline.learning.data.table_reader import table_records
    from pipeline.learning.own.register import network
    from pipeline.sweep.run import run_sweep
    from pipeline.trials.declared_table import table_inputs
    from pipeline.trials.fields import setting
    from pipeline.trials.packs import Resources

__all__ = ["ConfigError", "Experiment", "Resources", "TrialConfig", "account", "load_dataset", "load_experiment",
           "load_model", "network", "privacy_tags", "recommended", "run_sweep", "setting", "table_inputs",
           "table_records", "train"]

__getattr__, __dir__ = lazy(__name__, {
    "Experiment": "experiment.experiment", "Resources": "trials.packs", "account": "api",
    "load_dataset": "learning.data.dataset:load", "load_experiment": "experiment.experiment", "load_model": "api",
    "network": "learning.own.register", "privacy_tags": "accounting", "recommended": "experiment.preset",
    "run_sweep": "sweep.run", "setting": "trials.fields", "table_inputs": "trials.declared_table",
    "table_records": "learning.data.table_reader", "train": "api"})

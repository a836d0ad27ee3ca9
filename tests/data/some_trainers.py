"""Trainers of softmax regression, honest and not, as a plugin of tests."""

import math

import torch
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, RandomizedResponseDpEvent

from pipeline import Epoch, setting, trainer

WRONG = ("nan", "infinite", "classes", "none", "few", "many", "statistics", "batch", "raise", "metric", "metrics",
         "state")


def poisson(trial):
    return PoissonSampledDpEvent(trial.sampling_rate, GaussianDpEvent(trial.noise_multiplier))


def softmax(device):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).to(device)


def rows(model, x, y):
    """Every record's gradient [n, 650]."""
    error = torch.softmax(model(x), 1) - torch.nn.functional.one_hot(y, 10)
    return torch.cat([(error[:, :, None] * x.flatten(1)[:, None]).flatten(1), error], 1)


def step(model, update, learning_rate):
    with torch.no_grad():
        model[1].weight -= learning_rate * update[:640].view(10, 64)
        model[1].bias -= learning_rate * update[640:]


def by_poisson(trial, records, labels, device, generator):
    """DP-SGD on batches and noise of a generator; the models."""
    model = softmax(device)
    if trial.state:
        model.load_state_dict(trial.state)
    for _ in trial.epochs_left:
        for _ in range(trial.steps_per_epoch):
            taken = torch.rand(len(records), generator=generator) < trial.sampling_rate
            with torch.no_grad():
                own = rows(model, records[taken], labels[taken])
                own *= (1 / own.norm(dim=1, keepdim=True)).clamp(max=1)
                noise = torch.randn(650, generator=generator) * trial.noise_multiplier
            step(model, (own.sum(0) + noise) / trial.batch_size, trial.learning_rate)
        yield model


@trainer("plain", version=1, calibrates="noise_multiplier", settings={"learning_rate": None}, event=poisson)
def plain(trial, records, labels, device):
    """Draws from its own generator, and gives its state."""
    for model in by_poisson(trial, records, labels, device, trial.generator("sampling")):
        yield Epoch(model, {"norm": model[1].weight.norm().item()}, model.state_dict())


@trainer("by_globals", version=1, calibrates="noise_multiplier", settings={"learning_rate": None}, event=poisson)
def by_globals(trial, records, labels, device):
    """Draws from torch's global generator, and gives no state."""
    yield from by_poisson(trial, records, labels, device, torch.default_generator)


@trainer("prelude", version=1, calibrates="noise_multiplier", settings={"learning_rate": None}, event=poisson)
def prelude(trial, records, labels, device):
    """Draws noise from the global generator, by which its weights are drawn, too, and gives its state."""
    for model in by_poisson(trial, records, labels, device, torch.default_generator):
        yield Epoch(model, state=model.state_dict())


@trainer("elsewhere", version=1, calibrates="noise_multiplier", settings={"learning_rate": None}, event=poisson,
         randomness="own")
def elsewhere(trial, records, labels, device):
    """Draws from nothing that anybody could repeat."""
    generator = torch.Generator()
    generator.seed()
    yield from by_poisson(trial, records, labels, device, generator)


@trainer("rows", version=1, settings={"learning_rate": None}, parameters=lambda trial: 650,
         per_record="the gradient of a record's own loss")
def of_rows(trial, device):
    """Hands in what every record contributes."""
    model = softmax(device)
    for _ in trial.epochs_left:
        for batch in trial.batches():
            with torch.no_grad():
                own = trial.rows(lambda x, y: rows(model, x, y), *batch)
            step(model, trial.release(own), trial.learning_rate)
        yield model


@trainer("masked", version=1, settings={"learning_rate": None}, parameters=lambda trial: 650,
         per_record="the gradient of a record's own loss")
def masked(trial, device):
    """Hands in rows that have dropout by the global generator, and gives its state."""
    model = softmax(device)
    if trial.state:
        model.load_state_dict(trial.state)
    for _ in trial.epochs_left:
        for batch in trial.batches():
            with torch.no_grad():
                own = trial.rows(lambda x, y: torch.nn.functional.dropout(rows(model, x, y)), *batch)
            step(model, trial.release(own), trial.learning_rate)
        yield Epoch(model, state=model.state_dict())


@trainer("pure", version=1, calibrates="scale", event=lambda trial: LaplaceDpEvent(trial.scale), per="epoch",
         settings={"scale": setting(1.0, "of Laplace noise, over the sensitivity", low=0, open_low=True)})
def pure(trial, records, labels, device):
    for _ in range(trial.epochs):
        yield softmax(device)


@trainer("answers", version=1, relation="replace-one", per="epoch",
         event=lambda trial: RandomizedResponseDpEvent(2 / (1 + math.e), 2))
def answers(trial, records, labels, device):
    for _ in range(trial.epochs):
        yield softmax(device)


@trainer("wrong", version=1, settings={"how": setting("nan", "what goes wrong", choices=WRONG)})
def wrong(trial, records, labels, device):
    model, how = softmax(device), trial.how
    if how == "infinite":
        with torch.no_grad():
            model[1].weight[0, 0] = math.inf
    given = {"nan": lambda x: model(x) * math.nan, "classes": lambda x: model(x)[:, :7], "none": None,
             "statistics": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10)),
             "batch": lambda x: model(x - x.mean(0)), "metric": Epoch(model, {"loss": math.nan}),
             "metrics": Epoch(model, 0.5),
             "state": Epoch(model, state={"model": model})}
    for _ in range(trial.epochs):
        if how == "raise":
            raise ValueError("no batch today")
        yield given.get(how, model)  # line of most
        if how == "few":
            return
    if how == "many":
        yield model

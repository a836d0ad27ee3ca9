"""The optimizers of packs: torch's own, without what torch's classes bring along."""

import pytest
import torch

from pipeline.trials.config import TrialConfig

OF_TORCH = {
    "sgd": lambda parameters: torch.optim.SGD([parameters], lr=0.1, momentum=0.9, fused=True),
    "plain sgd": lambda parameters: torch.optim.SGD([parameters], lr=0.1, fused=True),
    "nesterov": lambda parameters: torch.optim.SGD([parameters], lr=0.1, momentum=0.8, nesterov=True, fused=True),
    "adam": lambda parameters: torch.optim.Adam([parameters], lr=0.1, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW([parameters], lr=0.1, weight_decay=0.3, fused=True),
}
SETTINGS = {"sgd": {"momentum": 0.9}, "plain sgd": {"momentum": 0.0}, "adam": {"optimizer": "adam"},
            "nesterov": {"optimizer": "nesterov", "momentum": 0.8},
            "adamw": {"optimizer": "adamw", "weight_decay": 0.3}}


@pytest.mark.parametrize("name", OF_TORCH)
def test_weights_have_the_bits_of_the_class_of_torch_as_the_step_size_falls_and_after_a_restoration(name):
    config = TrialConfig(dataset="digits", learning_rate=0.1, **SETTINGS[name])
    start = torch.randn(3, 1001, generator=torch.Generator().manual_seed(1))
    ours, theirs, update = start.clone(), start.clone().requires_grad_(), torch.empty_like(start)
    optimizer, reference = config.parts.optimizer.load()(config, ours, update), OF_TORCH[name](theirs)
    for step in range(6):
        if step == 3:
            kept = {key: value.clone() for key, value in optimizer.state.items()}
            optimizer = config.parts.optimizer.load()(config, ours, update)
            optimizer.restore(kept)
        update.normal_(generator=torch.Generator().manual_seed(10 + step))
        theirs.grad = update.clone()
        optimizer.learning_rate = reference.param_groups[0]["lr"] = 0.1 / (1 + step)
        optimizer.step()
        reference.step()
        assert torch.equal(ours, theirs)
    of_theirs = {key: value for key, value in reference.state_dict()["state"].get(0, {}).items() if value is not None}
    assert optimizer.state.keys() == of_theirs.keys()
    assert all(torch.equal(value, of_theirs[key]) for key, value in optimizer.state.items())

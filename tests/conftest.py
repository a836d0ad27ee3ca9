import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """One core per test process: the products here are small, and threads that wait for each other only cost."""
    torch.set_num_threads(1)

"""Memory at fixed addresses."""

import pytest
import torch

from worker_service.runner.workspace import Workspace, WorkspaceLocked


@pytest.fixture
def workspace() -> Workspace:
    """An empty one on the CPU."""
    return Workspace(torch.device("cpu"))


def test_smaller_shapes_are_the_beginning_of_the_largest(workspace: Workspace):
    """So graphs of all sizes share memory."""
    large = workspace.get("hidden", (8, 4), torch.float32)
    small = workspace.get("hidden", (3, 4), torch.float32)
    assert small.data_ptr() == large.data_ptr()
    assert workspace.num_bytes == 8 * 4 * 4


def test_a_late_allocation_is_an_error(workspace: Workspace):
    """Once locked nothing moves and nothing is made; what is there can be had."""
    before = workspace.get("hidden", (8,), torch.float32)
    workspace.lock()
    assert workspace.get("hidden", (8,), torch.float32).data_ptr() == before.data_ptr()
    with pytest.raises(WorkspaceLocked, match=r"hidden of shape \[9\] was not there"):
        workspace.get("hidden", (9,), torch.float32)
    with pytest.raises(WorkspaceLocked):
        workspace.get("other", (1,), torch.float32)
    with pytest.raises(WorkspaceLocked):
        workspace.get("hidden", (8,), torch.float64)


def test_cleared_it_is_as_new(workspace: Workspace):
    """Unlocked, and without a byte."""
    workspace.get("hidden", (8,), torch.float32)
    workspace.lock()
    workspace.clear()
    assert workspace.num_bytes == 0
    assert workspace.get("hidden", (9,), torch.float32).shape == (9,)

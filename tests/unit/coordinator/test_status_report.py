"""The state of a cluster as lines for people and as JSON for programs."""

import json

from coordinator.engine.cluster_status import ClusterStatus
from coordinator.status_report import status_json, status_lines
from tests.fakes.cluster_states import REBUILDING


def test_lines_tell_phase_ranks_load_and_losses():
    """An operator reads what is waited for, who was lost and why, and how far the service came."""
    assert status_lines(REBUILDING) == [
        "tiny  WAITING: waiting for stage 1 (have 1 of 2)",
        "  epoch 3  generation 2  step 412, 1.3 s ago",
        "  stage 0  10.0.0.0:50061  cpu  layers 0-1  1 load  COMPUTE 0.5 s",
        "  stage 1  10.0.0.1:50061  cpu  layers 2-3  2 loads  LOST: killed by SIGKILL",
        "  requests: 2 running, 1 waiting  KV cache blocks: 100 of 127 free",
        "  tokens: 2000 in prompts (25% from the prefix cache), 320 generated  preemptions: 4",
        "  invalid steps: 1  state drifts: 0",
        "  lost generation 2  1970-01-01 00:00:00+00:00  stage 1 lost",
    ]


def test_a_service_that_starts_has_one_line():
    """Before there are workers only the model and the phase are known."""
    assert status_lines(ClusterStatus(model="tiny")) == ["tiny  STARTING"]


def test_json_has_every_field():
    """Programs get the names of the fields and plain values."""
    told = json.loads(status_json(REBUILDING))
    assert told["phase"] == "WAITING"
    assert told["workers"][1]["rank"] == {"replica": 0, "stage": 1, "tensor_parallel": 0}
    assert told["lost_generations"] == [{"generation": 2, "cause": "stage 1 lost", "ended_at": 0.0}]
    assert told.keys() >= {"epoch", "last_step_age", "num_state_checks", "num_state_drifts"}

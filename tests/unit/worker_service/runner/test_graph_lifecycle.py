"""When graphs are captured, in which order and memory, what they write, and when they go."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.errors import ConfigError
from common.worker_api import MemoryBudget
from tests.fakes.static_backend import StaticBackend
from tests.fakes.step_driver import NoInputs, StepDriver, make_runner
from tests.fakes.tape_recorder import Tape, TapeRecorder, without_native_kernels
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.attention.torch_backend import TorchBackend
from worker_service.runner import model_runner
from worker_service.runner.model_runner import ModelRunner
from worker_service.runner.workspace import WorkspaceLocked

torch.set_num_threads(1)

SIZES = (1, 2, 4, 8)
NUM_LAYERS = 2
MOST_ROWS = 4
PROMPTS = {1: [65, 66, 67], 2: list(range(40, 46)), 3: [200, 3, 77, 12]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in float32."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), num_layers=NUM_LAYERS)


@pytest.fixture(autouse=True)
def torch_alone() -> Iterator[None]:
    """What tapes do not see is not there."""
    with without_native_kernels():
        yield


def graph_runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, mode: str, stage: int = 0, num_stages: int = 1
) -> tuple[ModelRunner, TapeRecorder]:
    """A runner with a cache, warm, and what it captured; FULL has attention that graphs can hold."""
    backend = StaticBackend() if mode == "full" else TorchBackend()
    monkeypatch.setattr(model_runner, "select_backend", lambda *args, **options: backend)
    recorders: list[TapeRecorder] = []

    def make_recorder(device: torch.device) -> TapeRecorder:
        recorders.append(TapeRecorder(device))
        return recorders[-1]

    options = {
        "cudagraph_mode": mode,
        "capture_sizes": SIZES,
        "make_recorder": make_recorder,
    }
    runner = make_runner(
        folder, options=options, stage=stage, num_stages=num_stages, num_layers=NUM_LAYERS
    )
    runner.warm_up()
    return runner, recorders[-1]


def eager_runner(folder: Path) -> ModelRunner:
    """A runner that has no graphs."""
    return make_runner(folder, num_layers=NUM_LAYERS)


def answer(runners: list[ModelRunner]) -> tuple[dict[int, list[int]], list[str]]:
    """Tokens of three requests that come one after the other, and how each step ran."""
    driver = StepDriver(runners)
    for handle, prompt in PROMPTS.items():
        driver.add(handle, prompt)
    modes: list[str] = []
    for counts in (
        {1: 3},
        {1: 1, 2: 6},
        *[{1: 1, 2: 1, 3: 2}] * 2,
        *[{1: 1, 2: 1, 3: 1}] * 4,
        {1: 1, 3: 1},
    ):
        driver.run(counts)
        assert runners[0].last_stats is not None
        modes.append(runners[0].last_stats.mode)
    return {handle: driver.sequences[handle].tokens for handle in PROMPTS}, modes


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_graphs_are_captured_after_the_warm_up_largest_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str
):
    """In pieces: one more than layers for each shape; whole ones after them; nothing while loading."""
    runner, recorder = graph_runner(folder, monkeypatch, mode=mode)
    assert recorder.num_sessions == 1
    num_pieces = len(SIZES) * (NUM_LAYERS + 1)
    whole = [size for size in SIZES if size <= MOST_ROWS] if mode == "full" else []
    assert len(recorder.tapes) == num_pieces + len(whole)
    firsts = [*recorder.tapes[: num_pieces : NUM_LAYERS + 1], *recorder.tapes[num_pieces:]]
    tokens = [_num_tokens(tape) for tape in firsts]
    assert tokens == [*sorted(SIZES, reverse=True), *sorted(whole, reverse=True)]
    assert runner.graphs.num_captured == len(SIZES) + len(whole)


def _num_tokens(tape: Tape) -> int:
    """Tokens of the first hidden states a tape makes."""
    shapes = [
        result.shape
        for _, _, _, result in tape.calls
        if isinstance(result, torch.Tensor) and result.ndim == 2 and result.is_floating_point()
    ]
    return shapes[0][0]


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_replayed_steps_answer_as_eager_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str
):
    """Token by token, with padding in rows and tokens, by the graphs that were to be taken."""
    eager, modes = answer([eager_runner(folder)])
    assert set(modes) == {"none"}
    runner, recorder = graph_runner(folder, monkeypatch, mode=mode)
    tokens, modes = answer([runner])
    assert tokens == eager
    decode = "full" if mode == "full" else "piecewise"
    assert modes == ["piecewise"] * 4 + [decode] * 5
    assert sum(tape.num_replays for tape in recorder.tapes) > 0


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_stages_replay_theirs(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str):
    """Hidden states that leave a stage are not overwritten by its next replay."""
    eager, _ = answer([eager_runner(folder)])
    stages = [
        graph_runner(folder, monkeypatch, mode=mode, stage=stage, num_stages=2)[0]
        for stage in range(2)
    ]
    tokens, modes = answer(stages)
    assert tokens == eager
    assert "none" not in modes


def test_what_leaves_a_stage_stays_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The next stage may still read it when the next step has run here."""
    first, _ = graph_runner(folder, monkeypatch, mode="piecewise", stage=0, num_stages=2)
    driver = StepDriver([first])
    driver.add(2, PROMPTS[2])
    sent: list[torch.Tensor] = []
    for count in (4, 1):
        result = first.execute_model(driver.plan({2: count}), NoInputs())
        assert isinstance(result, dict)
        sent += [result["hidden_states"], result["hidden_states"].clone()]
    assert torch.equal(sent[0], sent[1])


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_padding_is_stored_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str):
    """Of a step of three rows in a shape of four, three slots change; the capture changed none."""
    runner, _ = graph_runner(folder, monkeypatch, mode=mode)
    cache = runner.kv_cache
    for layer in range(NUM_LAYERS):
        for slots_KSD in cache.slots(layer):
            slots_KSD.fill_(7.0)
    runner.graphs.clear()
    runner.graphs.capture()
    assert all((slots == 7.0).all() for layer in range(NUM_LAYERS) for slots in cache.slots(layer))
    driver = StepDriver([runner])
    for handle in (1, 2, 3):
        driver.add(handle, PROMPTS[1])
    driver.run({1: 2, 2: 2, 3: 2})
    stored = [(slots_KSD != 7.0).any(dim=-1).any(dim=0) for slots_KSD in cache.slots(1)]
    driver.run({1: 1, 2: 1, 3: 1})
    assert runner.last_stats is not None
    assert (runner.last_stats.num_tokens, runner.last_stats.num_padded_tokens) == (3, 4)
    for before, slots_KSD in zip(stored, cache.slots(1), strict=True):
        after = (slots_KSD != 7.0).any(dim=-1).any(dim=0)
        assert int(before.sum()) == 6
        assert int(after.sum()) == 9


def test_graphs_share_memory_and_then_nothing_is_allocated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Inputs of all shapes begin at the same address; a step that needed more would fail."""
    runner, _ = graph_runner(folder, monkeypatch, mode="full")
    buffers = runner.graphs.buffers
    assert buffers.hidden(8).data_ptr() == buffers.hidden(1).data_ptr()
    with pytest.raises(WorkspaceLocked):
        buffers.hidden(9)


def test_a_new_cache_clears_graphs_and_a_warm_up_captures_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """A profile run is one, too: what graphs read has moved. Until then steps run eagerly."""
    runner, recorder = graph_runner(folder, monkeypatch, mode="piecewise")
    runner.profile_run(MemoryBudget(kv_cache_bytes=1 << 20, gpu_memory_utilization=0.5))
    assert runner.graphs.num_captured == 0
    runner.initialize_kv_cache(64)
    _, modes = answer([runner])
    assert set(modes) == {"none"}
    runner.forget_requests()
    runner.warm_up()
    assert recorder.num_sessions == 2
    assert runner.graphs.num_captured == len(SIZES)


def test_shutting_down_clears_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Device memory is given back before the model goes."""
    runner, _ = graph_runner(folder, monkeypatch, mode="piecewise")
    runner.shut_down()
    assert runner.graphs.num_captured == 0


def test_a_cpu_has_no_graphs(folder: Path):
    """Asked for by name the answer is an error; "auto" does without."""
    assert eager_runner(folder).graphs.num_captured == 0
    with pytest.raises(ConfigError, match="--cudagraph-mode full cannot be: only a CUDA device"):
        make_runner(folder, num_layers=NUM_LAYERS, options={"cudagraph_mode": "full"})


def test_attention_that_plans_on_the_host_is_in_no_graph(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """ "auto" is the most there can be: pieces; asked for whole graphs the error says why not."""
    runner, _ = graph_runner(folder, monkeypatch, mode="auto")
    assert answer([runner])[1][-1] == "piecewise"
    options = {"cudagraph_mode": "full", "make_recorder": TapeRecorder}
    with pytest.raises(ConfigError, match="attention backend torch plans steps by lengths"):
        make_runner(folder, num_layers=NUM_LAYERS, options=options)

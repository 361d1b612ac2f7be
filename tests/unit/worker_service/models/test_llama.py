"""The Llama family against `transformers`, and against itself in stages and ranks."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.fakes.paged_steps import Row, row_positions, small_cache, step_metadata
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.attention.backend import Attend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.models.decoder import DecoderModel
from worker_service.models.loading import LoadedModel, load_model
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.groups import Ranks

torch.set_num_threads(1)

PROMPT = torch.tensor(list(b"Stages hand hidden states on, and the last one samples."))
BLOCK_SIZE = 4
BLOCKS = [7, 3, 11, 2, 9, 14, 1, 5, 13, 4, 8, 12, 6, 10]


def load(
    folder: Path, layers: range | None = None, *, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """Load a stage of the folder's model on the CPU; all layers by default."""
    spec = read_model_spec(folder)
    layers = layers or range(spec.num_layers)
    return load_model(
        folder,
        spec=spec,
        layers=layers,
        is_first=layers.start == 0,
        is_last=layers.stop == spec.num_layers,
        ranks=Ranks(),
        dtype=dtype,
        device=torch.device("cpu"),
    )


@torch.inference_mode()
def run_stages(stages: list[DecoderModel], *, chunks: tuple[int, ...]) -> Tensor:
    """Logits of every token of PROMPT, computed in steps of the given lengths; float32 [T, V]."""
    caches = [
        small_cache(
            num_layers=len(stage.layers),
            num_kv_heads=stage.spec.num_kv_heads,
            head_size=stage.spec.head_size,
            num_blocks=15,
            block_size=BLOCK_SIZE,
            dtype=stage.layers[0].mlp.down.weight.dtype,
        )
        for stage in stages
    ]
    logits: list[Tensor] = []
    num_cached = 0
    for length in chunks:
        row = Row(blocks=BLOCKS, num_cached=num_cached, num_tokens=length)
        metadata = step_metadata([row], block_size=BLOCK_SIZE)
        hidden_TD = stages[0].embed(PROMPT[num_cached : num_cached + length])
        for stage, cache in zip(stages, caches, strict=True):
            attend = Attend(TorchBackend(), cache, metadata)
            hidden_TD = stage(hidden_TD, row_positions([row]), attend)
        logits.append(stages[-1].compute_logits(hidden_TD))
        num_cached += length
    return torch.cat(logits)


@torch.inference_mode()
def reference_logits(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `transformers` computes for PROMPT; float32 [T, V]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model(PROMPT[None]).logits[0].float()


CASES = {
    "tied": {},
    "untied": {"tied": False},
    "llama3": {"rope": "llama3"},
    "biases": {"bias": True},
    "one head each": {"kv_heads": 4},
    "own head_dim": {"head_dim": 32},
    "three files": {"num_shards": 3},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_logits_equal_transformers(tmp_path: Path, options: dict[str, object]) -> None:
    """In float32 all logits are transformers' within 1e-5 of the largest, whole or in chunks."""
    folder = write_tiny_llama(tmp_path, **options)
    expected = reference_logits(folder)
    model = load(folder).model
    tolerance = 1e-5 * expected.abs().max().item()
    for chunks in ((55,), (20, 1, 1, 33), (1,) * 55):
        actual = run_stages([model], chunks=chunks)
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def test_bfloat16_follows_transformers(tmp_path: Path) -> None:
    """In bfloat16 the rounding error against float32 is of transformers' size, not larger."""
    folder = write_tiny_llama(tmp_path)
    exact = reference_logits(folder)
    reference_error = (reference_logits(folder, torch.bfloat16) - exact).abs().mean()
    actual = run_stages([load(folder, dtype=torch.bfloat16).model], chunks=(30, 25))
    assert (actual - exact).abs().mean() < 1.2 * reference_error


def test_newer_rope_parameters_read_alike(tmp_path: Path) -> None:
    """A config in the newer spelling (rope_parameters) gives the same specification."""
    folder = write_tiny_llama(tmp_path, rope="llama3")
    older = read_model_spec(folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {
        **config.pop("rope_scaling"),
        "rope_theta": config.pop("rope_theta"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    assert read_model_spec(folder) == older


@pytest.mark.parametrize("ends", [(3, 6), (1, 4, 6)])
@pytest.mark.parametrize("tied", [True, False])
def test_stages_equal_whole_model(tmp_path: Path, ends: tuple[int, ...], *, tied: bool) -> None:
    """Two or three stages compute bit for bit what one does."""
    folder = write_tiny_llama(tmp_path, tied=tied)
    whole = run_stages([load(folder).model], chunks=(40, 1, 14))
    layers = [range(start, stop) for start, stop in zip((0, *ends), ends, strict=False)]
    stages = [load(folder, part).model for part in layers]
    assert torch.equal(run_stages(stages, chunks=(40, 1, 14)), whole)


def test_forward_leaves_input_alone(tmp_path: Path) -> None:
    """A stage never writes to the hidden states it was given, which may be a received buffer."""
    model = load(write_tiny_llama(tmp_path, num_layers=1)).model
    row = Row(blocks=[1], num_cached=0, num_tokens=3)
    cache = small_cache(num_layers=1, num_kv_heads=2, head_size=16, num_blocks=2, block_size=4)
    hidden_TD = model.embed(PROMPT[:3])
    before = hidden_TD.clone()
    attend = Attend(TorchBackend(), cache, step_metadata([row], block_size=4))
    model(hidden_TD, row_positions([row]), attend)
    assert torch.equal(hidden_TD, before)

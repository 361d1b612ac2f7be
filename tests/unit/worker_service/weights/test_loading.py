"""Checkpoints on disk -> parameters: what is read, what is refused, how ranks share."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from common.errors import ConfigError, ModelError
from tests.fakes.tiny_checkpoint import save_tensors, write_tiny_llama
from worker_service.models.loading import LoadedModel, load_model
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.groups import Ranks

torch.set_num_threads(1)


def load(
    folder: Path,
    *,
    layers: range | None = None,
    ranks: Ranks | None = None,
    dtype: torch.dtype = torch.float32,
) -> LoadedModel:
    """Load a stage of the folder's model on the CPU; all layers by default."""
    spec = read_model_spec(folder)
    layers = range(spec.num_layers) if layers is None else layers
    return load_model(
        folder,
        spec=spec,
        layers=layers,
        is_first=layers.start == 0,
        is_last=layers.stop == spec.num_layers,
        ranks=ranks or Ranks(),
        dtype=dtype,
        device=torch.device("cpu"),
    )


def rewrite(folder: Path, **changes: Tensor | None) -> None:
    """Replace, add (a tensor) or drop (None) tensors of a single-file checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_tensors(folder, tensors)


def test_packed_parameters_hold_their_sources(tmp_path: Path) -> None:
    """Query, key and value rows stand one below the other, and so do gate and up."""
    folder = write_tiny_llama(tmp_path, num_layers=1, bias=True)
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(load(folder).model.named_parameters())
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    for part in ("weight", "bias"):
        qkv = [tensors[f"{attention}.{name}_proj.{part}"] for name in "qkv"]
        assert torch.equal(parameters[f"layers.0.attention.qkv.{part}"], torch.cat(qkv))
        gate_up = [tensors[f"{mlp}.{name}_proj.{part}"] for name in ("gate", "up")]
        assert torch.equal(parameters[f"layers.0.mlp.gate_up.{part}"], torch.cat(gate_up))


def test_report_counts_what_was_read(tmp_path: Path) -> None:
    """A whole float32 model reads and holds every byte of the file's tensors once."""
    folder = write_tiny_llama(tmp_path, num_layers=2)
    tensors = load_file(folder / "model.safetensors")
    report = load(folder)
    assert report.tensors_read == len(tensors)
    assert report.bytes_read == sum(tensor.nbytes for tensor in tensors.values())
    assert report.parameter_bytes == report.bytes_read
    assert load(folder, dtype=torch.bfloat16).parameter_bytes * 2 == report.bytes_read


@pytest.mark.parametrize("num_shards", [1, 3])
def test_stages_read_only_their_own(tmp_path: Path, num_shards: int) -> None:
    """Two stages read each tensor once between them, and only a tied table twice."""
    folder = write_tiny_llama(tmp_path, num_layers=4, num_shards=num_shards)
    spec = read_model_spec(folder)
    whole = load(folder)
    first, last = load(folder, layers=range(3)), load(folder, layers=range(3, 4))
    table_bytes = spec.vocab_size * spec.hidden_size * 4
    assert first.bytes_read + last.bytes_read == whole.bytes_read + table_bytes
    assert first.tensors_read + last.tensors_read == whole.tensors_read + 1
    assert last.parameter_bytes == last.bytes_read < first.parameter_bytes == first.bytes_read


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    """A tensor the stage needs and the checkpoint lacks is named; other stages do not miss it."""
    folder = write_tiny_llama(tmp_path, num_layers=2)
    rewrite(folder, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ModelError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)
    load(folder, layers=range(1))


def test_unused_tensor_is_named_by_every_stage(tmp_path: Path) -> None:
    """A tensor no part of the model claims is refused, wherever the stage stands."""
    folder = write_tiny_llama(tmp_path, num_layers=2)
    rewrite(folder, **{"model.layers.2.mlp.up_proj.weight": torch.ones(1)})
    for layers in (range(2), range(1), range(1, 2)):
        with pytest.raises(ModelError, match=r"no use for: model\.layers\.2\.mlp\.up_proj\.weight"):
            load(folder, layers=layers)


def test_bias_without_its_switch_is_unused(tmp_path: Path) -> None:
    """A bias that config.json does not announce is refused instead of being dropped."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    rewrite(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    with pytest.raises(ModelError, match=r"q_proj\.bias"):
        load(folder)


def test_rotary_frequencies_are_ignored(tmp_path: Path) -> None:
    """Frequencies that old checkpoints store do no harm and are not read."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    before = load(folder).tensors_read
    rewrite(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert load(folder).tensors_read == before


def test_stored_head_of_a_tied_model_is_ignored(tmp_path: Path) -> None:
    """When config.json ties the head, a stored copy is not read: the embedding counts."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    rewrite(folder, **{"lm_head.weight": torch.zeros(260, 64)})
    model = load(folder).model
    assert model.head is model.embedding
    assert model.head.weight.any()


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    """A tensor that does not fit config.json is named with both shapes."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    rewrite(folder, **{"model.norm.weight": torch.ones(65)})
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[65\].*\[64\]"):
        load(folder)


def test_quantized_dtype_is_named(tmp_path: Path) -> None:
    """A tensor of a type that is not floating point is refused instead of converted."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    rewrite(folder, **{"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(ModelError, match=r"model\.norm\.weight has dtype I8"):
        load(folder)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file the index names and the folder lacks is named; so is a folder without any."""
    folder = write_tiny_llama(tmp_path, num_layers=1, num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing"):
        load(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        load(folder)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    """A file cut short is refused before anything is read."""
    file = write_tiny_llama(tmp_path, num_layers=1) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model\.safetensors holds \d+ bytes of tensors"):
        load(tmp_path)
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="is not a safetensors file"):
        load(tmp_path)


def test_index_must_be_an_index(tmp_path: Path) -> None:
    """An index without a weight map is named."""
    folder = write_tiny_llama(tmp_path, num_layers=1, num_shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}}))
    with pytest.raises(ModelError, match="is not a safetensors index"):
        load(folder)


def test_digest_is_the_checkpoints(tmp_path: Path) -> None:
    """Stages of one checkpoint agree on the digest; other weights of equal shapes differ."""
    folder = write_tiny_llama(tmp_path / "a", num_layers=2)
    first, last = load(folder, layers=range(1)), load(folder, layers=range(1, 2))
    assert first.weights_digest == last.weights_digest
    same = load(write_tiny_llama(tmp_path / "b", num_layers=2))
    assert same.weights_digest == first.weights_digest
    other = load(write_tiny_llama(tmp_path / "c", num_layers=2, seed=1))
    assert other.weights_digest != first.weights_digest


def test_layers_must_exist(tmp_path: Path) -> None:
    """A slice past the last layer is refused."""
    folder = write_tiny_llama(tmp_path, num_layers=2)
    with pytest.raises(ModelError, match="layers 1 to 3 are not in a model of 2 layers"):
        load(folder, layers=range(1, 3))


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_their_shares(tmp_path: Path, size: int) -> None:
    """Ranks hold disjoint heads, columns and rows; with more ranks than key heads they share one."""
    folder = write_tiny_llama(tmp_path, num_layers=1, tied=False)
    tensors = load_file(folder / "model.safetensors")
    shares = [
        dict(load(folder, ranks=Ranks(size=size, index=index)).model.named_parameters())
        for index in range(size)
    ]
    assert sum(share["embedding.weight"].shape[0] for share in shares) == 260
    output = torch.cat([share["layers.0.attention.output.weight"] for share in shares], dim=1)
    assert torch.equal(output, tensors["model.layers.0.self_attn.o_proj.weight"])
    keys = tensors["model.layers.0.self_attn.k_proj.weight"].split(16)
    num_queries = 64 // size
    for index, share in enumerate(shares):
        mine = share["layers.0.attention.qkv.weight"][num_queries:].chunk(2)[0]
        assert torch.equal(mine, keys[index * 2 // size])


def test_uneven_shares_are_refused(tmp_path: Path) -> None:
    """Heads that ranks cannot share evenly are an error that says so."""
    folder = write_tiny_llama(tmp_path, num_layers=1)
    with pytest.raises(ConfigError, match="cannot be shared evenly by 3 ranks"):
        load(folder, ranks=Ranks(size=3, index=0))


def test_shards_are_read_as_slices(tmp_path: Path) -> None:
    """A rank of two reads about half of the bytes, and holds what it reads."""
    folder = write_tiny_llama(tmp_path, num_layers=4)
    whole, half = load(folder), load(folder, ranks=Ranks(size=2, index=1))
    assert half.bytes_read == half.parameter_bytes
    assert 0.5 < half.bytes_read / whole.bytes_read < 0.51

"""A model whose weights are packed: same results, plain weights gone, bytes counted as held."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fakes.paged_steps import Row, row_positions, small_cache, step_metadata
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.attention.backend import Attend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.kernels.packed_weight import PackedWeight, PlainWeight
from worker_service.models.decoder import DecoderModel
from worker_service.models.loading import LoadedModel, load_model, pack_weights
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.groups import Ranks

TOKENS = torch.tensor(list(b"Packed weights multiply as plain ones do."))


class Transposed(PlainWeight):
    """A weight in another form: inputs first."""

    def __init__(self, weight_OI: Tensor) -> None:
        self._weight_IO = weight_OI.T.contiguous()
        super().__init__(self._weight_IO.T)


def packer(weight_OI: Tensor) -> PackedWeight:
    """Make transposed weights."""
    return Transposed(weight_OI)


def load(folder: Path, *, layers: range = range(6)) -> LoadedModel:
    """Load some of six layers, with the ends where they are there."""
    return load_model(
        folder,
        spec=read_model_spec(folder),
        layers=layers,
        is_first=layers.start == 0,
        is_last=layers.stop == 6,
        ranks=Ranks(),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@torch.inference_mode()
def run(model: DecoderModel) -> Tensor:
    """Logits of TOKENS, all in one step; [T, V]."""
    row = Row(blocks=[1, 2, 3], num_cached=0, num_tokens=len(TOKENS))
    cache = small_cache(
        num_layers=6,
        num_kv_heads=2,
        head_size=16,
        num_blocks=4,
        block_size=16,
        dtype=torch.float32,
    )
    attend = Attend(TorchBackend(), cache, step_metadata([row], block_size=16))
    return model.compute_logits(model(model.embed(TOKENS), row_positions([row]), attend))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_stay_as_they_are(tmp_path: Path, *, tied: bool, bias: bool):
    """Every linear layer and the head go through the packed form, biases included."""
    folder = write_tiny_llama(tmp_path, tied=tied, bias=bias)
    plain = run(load(folder).model)
    packed = run(pack_weights(load(folder), packer).model)
    torch.testing.assert_close(packed, plain, rtol=1e-5, atol=1e-5)


def test_plain_weights_go(tmp_path: Path):
    """Norms, and an embedding for looking up, are all that is left of the parameters."""
    packed = pack_weights(load(write_tiny_llama(tmp_path, tied=False)), packer).model
    names = [name for name, _ in packed.named_parameters() if "norm" not in name]
    assert names == ["embedding.weight"]


def test_bytes_are_those_held(tmp_path: Path):
    """A tied table counts twice, as rows and as packed head; all else counts once."""
    untied = load(write_tiny_llama(tmp_path / "untied", tied=False))
    tied = load(write_tiny_llama(tmp_path / "tied", tied=True))
    assert pack_weights(untied, packer).parameter_bytes == untied.parameter_bytes
    table_bytes = tied.model.head.weight.nbytes
    assert pack_weights(tied, packer).parameter_bytes == tied.parameter_bytes + table_bytes


def test_a_stage_in_the_middle_has_no_head(tmp_path: Path):
    """Only layers are packed where no end of the model stands."""
    middle = load(write_tiny_llama(tmp_path), layers=range(2, 4))
    assert pack_weights(middle, packer).parameter_bytes == middle.parameter_bytes

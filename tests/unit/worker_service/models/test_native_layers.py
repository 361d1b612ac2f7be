"""A stage's layers in one native call against the same layers one kernel at a time."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fakes.native_isa import native_isa
from tests.fakes.paged_steps import Row, row_positions, small_cache, step_metadata
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.attention.backend import Attend
from worker_service.attention.select import select_backend
from worker_service.kernels.native import Isa
from worker_service.kernels.packed_weight import select_packer
from worker_service.models.decoder import DecoderModel
from worker_service.models.loading import load_model, pack_weights
from worker_service.models.model_spec import read_model_spec
from worker_service.parallel.groups import Ranks

CPU = torch.device("cpu")
NUM_LAYERS, BLOCK_SIZE = 3, 4

# A prompt's part, longer than a linear layer takes at once, and two decodes; then three decodes.
PROMPT_BLOCKS, PROMPT_LEN = list(range(1, 20)), 73
STEPS = (
    [
        Row(blocks=PROMPT_BLOCKS, num_cached=0, num_tokens=PROMPT_LEN),
        Row(blocks=[20], num_cached=0, num_tokens=1),
        Row(blocks=[21], num_cached=0, num_tokens=1),
    ],
    [
        Row(blocks=PROMPT_BLOCKS, num_cached=PROMPT_LEN, num_tokens=1),
        Row(blocks=[20], num_cached=1, num_tokens=1),
        Row(blocks=[21], num_cached=1, num_tokens=1),
    ],
)


def load(folder: Path, *, dtype: torch.dtype, quantization: str = "none") -> DecoderModel:
    """The folder's model, its weights packed as a worker packs them."""
    loaded = load_model(
        folder,
        spec=read_model_spec(folder),
        layers=range(NUM_LAYERS),
        is_first=True,
        is_last=True,
        ranks=Ranks(),
        dtype=dtype,
        device=CPU,
    )
    packer = select_packer(dtype=dtype, device=CPU, quantization=quantization)
    return loaded.model if packer is None else pack_weights(loaded, packer).model


@torch.inference_mode()
def run(model: DecoderModel, *, backend: str = "cpu") -> list[Tensor]:
    """Hidden states of STEPS, then what they left in the cache."""
    cache = small_cache(
        num_layers=NUM_LAYERS,
        num_kv_heads=2,
        head_size=16,
        num_blocks=22,
        block_size=BLOCK_SIZE,
        dtype=torch.bfloat16,
    )
    chosen = select_backend(backend, device=CPU, dtype=torch.bfloat16, head_size=16)
    results: list[Tensor] = []
    for rows in STEPS:
        num_tokens = sum(row.num_tokens for row in rows)
        tokens = torch.arange(num_tokens) * 7 % 250
        attend = Attend(chosen, cache, step_metadata(rows, block_size=BLOCK_SIZE))
        results.append(model(model.embed(tokens), row_positions(rows), attend))
    return results + [slots.nan_to_num(7) for slots in cache.slots(NUM_LAYERS - 1)]


@pytest.mark.parametrize(
    ("isa", "quantization"),
    [
        (Isa.AVX512_BF16, "none"),
        (Isa.AVX512_BF16, "int8"),
        (Isa.AVX512_BF16, "int4"),
        (Isa.AVX2, "none"),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("intermediate", [96, 128])
def test_one_call_gives_the_same_bits(
    tmp_path: Path, isa: Isa, quantization: str, intermediate: int, *, bias: bool
):
    """Hidden states and cache are equal to the last bit; 96 outputs are whole blocks, 128 are not."""
    with native_isa(isa, num_threads=2):
        folder = write_tiny_llama(
            tmp_path,
            num_layers=NUM_LAYERS,
            intermediate=intermediate,
            bias=bias,
            dtype=torch.bfloat16,
        )
        model = load(folder, dtype=torch.bfloat16, quantization=quantization)
        assert model.native_layers is not None
        at_once = run(model)
        model.native_layers = None
        assert all(map(torch.equal, at_once, run(model)))


@pytest.mark.parametrize("isa", [Isa.AVX512_BF16, Isa.AVX2])
def test_bfloat16_layers_are_native(tmp_path: Path, isa: Isa):
    """bfloat16 weights have a kernel on every instruction set, so their layers run at once."""
    with native_isa(isa, num_threads=1):
        folder = write_tiny_llama(tmp_path, num_layers=NUM_LAYERS)
        assert load(folder, dtype=torch.bfloat16).native_layers is not None


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_integers_go_layer_by_layer_without_avx512(tmp_path: Path, quantization: str):
    """Their AVX2 kernels multiply float32 rows, which one call for all layers does not have."""
    with native_isa(Isa.AVX2, num_threads=1):
        folder = write_tiny_llama(tmp_path, num_layers=NUM_LAYERS, dtype=torch.bfloat16)
        assert load(folder, dtype=torch.bfloat16, quantization=quantization).native_layers is None


def test_other_backends_go_layer_by_layer(tmp_path: Path):
    """With torch's attention the same model still runs, and hidden states are nearly the same."""
    folder = write_tiny_llama(tmp_path, num_layers=NUM_LAYERS, dtype=torch.bfloat16)
    with native_isa(Isa.AVX2, num_threads=1):
        model = load(folder, dtype=torch.bfloat16)
        for at_once, by_torch in zip(run(model), run(model, backend="torch"), strict=True):
            torch.testing.assert_close(at_once, by_torch, rtol=0.1, atol=0.1)


def test_input_is_left_alone(tmp_path: Path):
    """Hidden states that another stage sent are only read."""
    folder = write_tiny_llama(tmp_path, num_layers=NUM_LAYERS)
    with native_isa(Isa.AVX2, num_threads=1):
        model = load(folder, dtype=torch.bfloat16)
        rows = [Row(blocks=[1], num_cached=0, num_tokens=3)]
        hidden_TD = model.embed(torch.tensor([1, 2, 3]))
        before_TD = hidden_TD.clone()
        cache = small_cache(
            num_layers=NUM_LAYERS,
            num_kv_heads=2,
            head_size=16,
            num_blocks=2,
            block_size=BLOCK_SIZE,
            dtype=torch.bfloat16,
        )
        backend = select_backend("cpu", device=CPU, dtype=torch.bfloat16, head_size=16)
        attend = Attend(backend, cache, step_metadata(rows, block_size=BLOCK_SIZE))
        model(hidden_TD, row_positions(rows), attend)
        assert torch.equal(hidden_TD, before_TD)


def test_float32_stays_with_the_layers(tmp_path: Path):
    """Only bfloat16 is packed, and only packed layers run at once."""
    folder = write_tiny_llama(tmp_path, num_layers=NUM_LAYERS)
    assert load(folder, dtype=torch.float32).native_layers is None

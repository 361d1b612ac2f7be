"""A stage in the form a coordinator asks for: what it computes, what it holds, what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import InvalidRequest
from tests.fakes.native_isa import native_isa
from tests.fakes.paged_steps import Row, row_positions, small_cache, step_metadata
from tests.fakes.tiny_checkpoint import write_tiny_llama
from tests.fakes.worker_setup import load_request
from worker_service.attention.backend import Attend
from worker_service.attention.torch_backend import TorchBackend
from worker_service.kernels.int4_weight import quantize_int4
from worker_service.kernels.int8_weight import quantize_int8
from worker_service.kernels.native import Isa
from worker_service.kernels.packed_weight import PlainWeight, quantizations
from worker_service.models.decoder import DecoderModel
from worker_service.models.layers.linear import ColumnLinear, RowLinear
from worker_service.runner.load_stage import LoadedStage, load_stage

# T tokens, V vocabulary

torch.set_num_threads(1)

CPU = torch.device("cpu")
PROMPT = torch.tensor(list(b"Numbers of few bits stand for many."))
BLOCK_SIZE = 4
QUANTIZE = {"int8": quantize_int8, "int4": quantize_int4}

forms = pytest.mark.parametrize("form", QUANTIZE)


def load(
    folder: Path, form: str, *, stage: int = 0, num_stages: int = 1, dtype: str = "float32"
) -> LoadedStage:
    """One stage of the folder's model, its weights in the given form."""
    request = load_request(str(folder), stage=stage, num_stages=num_stages)
    return load_stage(folder, replace(request, quantization=form, dtype=dtype), device=CPU)


@torch.inference_mode()
def logits(stages: list[DecoderModel], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits of PROMPT in one step over the stages; float32 [T, V]."""
    num_blocks = len(PROMPT) // BLOCK_SIZE + 2
    row = Row(blocks=list(range(1, num_blocks)), num_cached=0, num_tokens=len(PROMPT))
    metadata = step_metadata([row], block_size=BLOCK_SIZE)
    hidden_TD = stages[0].embed(PROMPT)
    for stage in stages:
        cache = small_cache(
            num_layers=len(stage.layers),
            num_kv_heads=stage.spec.num_kv_heads,
            head_size=stage.spec.head_size,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            dtype=dtype,
        )
        attend = Attend(TorchBackend(), cache, metadata)
        hidden_TD = stage(hidden_TD, row_positions([row]), attend)
    return stages[-1].compute_logits(hidden_TD)


def with_plain_numbers(model: DecoderModel, form: str) -> DecoderModel:
    """A float32 model that multiplies by what the integers of its weights stand for, 8-bit at the head."""

    def stand_for(weight_OI: Tensor) -> PlainWeight:
        return PlainWeight(QUANTIZE[form](weight_OI).plain())

    for module in model.modules():
        if isinstance(module, ColumnLinear | RowLinear):
            module.pack(stand_for)
    model.head.packed = PlainWeight(quantize_int8(model.head.weight).plain())
    return model


@pytest.mark.parametrize("options", [{}, {"tied": False, "bias": True}, {"hidden": 72, "heads": 4}])
@forms
def test_a_quantized_stage_multiplies_by_its_integers(tmp_path: Path, form: str, options: dict):
    """Layers and head multiply by the numbers of the weights as loaded; all else is as it was."""
    folder = write_tiny_llama(tmp_path, **options)
    expected_TV = logits([with_plain_numbers(load(folder, "none").model, form)])
    actual_TV = logits([load(folder, form).model])
    tolerance = 1e-5 * expected_TV.abs().max().item()
    torch.testing.assert_close(actual_TV, expected_TV, rtol=0, atol=tolerance)


@forms
def test_bfloat16_adds_no_more_than_its_own_rounding(tmp_path: Path, form: str):
    """In bfloat16 the error against the same integers in float32 is that of plain bfloat16 weights."""
    folder = write_tiny_llama(tmp_path, dtype=torch.bfloat16)

    def rounding(form: str) -> Tensor:
        rounded_TV = logits([load(folder, form, dtype="bfloat16").model], torch.bfloat16)
        return (rounded_TV - logits([load(folder, form).model])).abs().mean()

    assert rounding(form) < 1.2 * rounding("none")


@pytest.mark.parametrize("tied", [True, False])
@forms
def test_quantized_stages_equal_the_whole_model(tmp_path: Path, form: str, *, tied: bool):
    """Two stages compute bit for bit what one does, a tied head on the last one included."""
    folder = write_tiny_llama(tmp_path, tied=tied)
    stages = [load(folder, form, stage=stage, num_stages=2).model for stage in (0, 1)]
    assert torch.equal(logits(stages), logits([load(folder, form).model]))


@pytest.mark.parametrize(("form", "bits"), [("int8", 8.45), ("int4", 5.0)])
def test_the_report_counts_integers_and_the_table_for_looking_up(
    tmp_path: Path, form: str, bits: float
):
    """Layers take their bits a weight, the head 8.5; a tied table stays beside its head."""
    folder = write_tiny_llama(tmp_path)
    plain, quantized = load(folder, "none").loaded, load(folder, form).loaded
    table = plain.model.embedding.weight
    num_kept = sum(p.numel() for name, p in plain.model.named_parameters() if "norm" in name)
    num_kept += table.numel()
    num_multiplied = plain.parameter_bytes // 4 - num_kept
    expected_bits = num_multiplied * bits + table.numel() * 8.5 + num_kept * 32
    assert quantized.parameter_bytes * 8 == pytest.approx(expected_bits, rel=0.01)
    assert quantized.bytes_read == plain.bytes_read
    assert quantized.weights_digest == plain.weights_digest
    assert torch.equal(quantized.model.embedding.weight, table)


def test_only_a_cpu_holds_quantized_weights(tmp_path: Path):
    """Another device says so in its description, and refuses the form by name."""
    assert quantizations(CPU) == ("int8", "int4")
    assert quantizations(torch.device("cuda")) == ()
    folder = write_tiny_llama(tmp_path)
    request = replace(load_request(str(folder)), quantization="int8")
    with pytest.raises(InvalidRequest, match="computes on meta and cannot hold weights as int8"):
        load_stage(folder, request, device=torch.device("meta"))


def test_torch_leaves_the_cores_to_the_kernels(tmp_path: Path):
    """A stage that kernels compute leaves torch one thread; one that torch computes has them again."""
    folder = write_tiny_llama(tmp_path, dtype=torch.bfloat16)
    with native_isa(Isa.AVX2, num_threads=1) as kernels:
        torch.set_num_threads(2)
        try:
            load(folder, "none", dtype="bfloat16")
            assert (torch.get_num_threads(), kernels.num_threads()) == (1, 2)
            load(folder, "none", dtype="float32")
            assert (torch.get_num_threads(), kernels.num_threads()) == (2, 2)
        finally:
            torch.set_num_threads(1)

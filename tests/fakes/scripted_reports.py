"""What a scripted worker says of the stage it was told to load: sizes made up of round numbers."""

from common.step import IntermediateTensors, SchedulerOutput, StepKey
from common.tensors import DType, WireTensor, wire_tensor
from common.worker_api import (
    PROTOCOL_VERSION,
    HeldStage,
    KVCacheGroup,
    KVCacheSpec,
    LoadModel,
    LoadReport,
    MemoryBudget,
    MemoryReport,
    WorkerInfo,
)
from tests.fakes.scripted_command import ScriptedCommand
from tests.fakes.scripted_model import ModelLimits

PARAMETER_BYTES_PER_LAYER = 1000
BYTES_PER_BLOCK = 1024


def worker_info(
    command: ScriptedCommand,
    *,
    incarnation: str,
    endpoint: str,
    held: HeldStage | None,
    num_loads: int,
) -> WorkerInfo:
    """A float32 worker of this protocol version, which also holds int8 weights."""
    return WorkerInfo(
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        build="scripted",
        incarnation=incarnation,
        device="scripted",
        memory_bytes=1 << 30,
        dtypes=("float32",),
        tensor_endpoint=endpoint,
        state=command.state,
        epoch=command.authority.epoch,
        generation=command.generation,
        num_threads=1,
        held_stage=held,
        num_loads=num_loads,
        quantizations=("int8",),
    )


def memory_report(budget: MemoryBudget) -> MemoryReport:
    """The whole budget, a megabyte where none is given."""
    return MemoryReport(
        kv_cache_bytes=budget.kv_cache_bytes or 1 << 20, activation_bytes=0, profile_seconds=0.0
    )


def load_report(request: LoadModel) -> LoadReport:
    """A layer is one tensor of PARAMETER_BYTES_PER_LAYER."""
    num_layers = request.end_layer - request.first_layer
    return LoadReport(
        parameter_bytes=num_layers * PARAMETER_BYTES_PER_LAYER,
        bytes_read=num_layers * PARAMETER_BYTES_PER_LAYER,
        tensors_read=num_layers,
        weights_digest="scripted",
        dtype="float32",
        seconds=0.0,
    )


def kv_cache_spec(request: LoadModel) -> KVCacheSpec:
    """One full-attention group with BYTES_PER_BLOCK bytes a block."""
    group = KVCacheGroup(
        kind="full_attention",
        num_layers=request.end_layer - request.first_layer,
        num_kv_heads=1,
        head_size=1,
        bytes_per_block=BYTES_PER_BLOCK,
    )
    return KVCacheSpec(block_size=request.block_size, groups=(group,))


def model_limits(request: LoadModel, *, vocab_size: int, num_blocks: int) -> ModelLimits:
    """The sizes of the scripted model that was loaded."""
    return ModelLimits(
        vocab_size=vocab_size,
        block_size=request.block_size,
        num_blocks=num_blocks,
        max_model_len=request.max_model_len,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=request.max_num_seqs,
    )


def intermediate_tensors(
    output: SchedulerOutput, key: StepKey, *, is_inline: bool
) -> IntermediateTensors:
    """Zeros of one value a token, inline or on the way."""
    num_tokens = output.total_num_scheduled_tokens
    tensor: WireTensor = wire_tensor(
        name="hidden_states",
        dtype=DType.FLOAT32,
        shape=(num_tokens, 1),
        buffer=memoryview(bytes(4 * num_tokens)),
    )
    return IntermediateTensors(
        key=key,
        descriptors=(tensor.descriptor,),
        inline=(tensor,) if is_inline else None,
    )

"""Requests of `vllm.grpc.engine.VllmEngine` -> the engine's input.

In this protocol the zero of a number without presence stands for its default. What is not built is
refused by name, unless its value asks for nothing.
"""

import uuid

from smg_grpc_proto import vllm_engine_pb2 as pb

from common.errors import InvalidRequest
from coordinator.api.constraint_fields import constraint_of_arm
from coordinator.engine.generation import GenerationInput
from coordinator.structured.constraint import Constraint

ONLY_REPLICA = 0


def decode_generate(request: pb.GenerateRequest) -> GenerationInput:
    """The engine's input; raises InvalidRequest where a field asks for what is not built."""
    refuse_unsupported(request)
    params = request.sampling_params
    return GenerationInput(
        request_id=request.request_id or f"vllm-{uuid.uuid4().hex}",
        prompts=(_prompt(request),),
        n=params.n or None,
        max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
        temperature=params.temperature if params.HasField("temperature") else None,
        top_k=params.top_k,
        top_p=params.top_p or None,
        min_p=params.min_p,
        seed=params.seed if params.HasField("seed") else None,
        stop=tuple(params.stop),
        stop_token_ids=tuple(params.stop_token_ids),
        ignore_eos=params.ignore_eos,
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        repetition_penalty=params.repetition_penalty or None,
        frequency_penalty=params.frequency_penalty or None,
        presence_penalty=params.presence_penalty or None,
        min_tokens=params.min_tokens or None,
        logit_bias=tuple(params.logit_bias.items()),
        constraint=_constraint(params),
    )


def refuse_unsupported(request: pb.GenerateRequest) -> None:
    """Raise InvalidRequest naming the first field that asks for what is not built.

    What only says how a text is made of the tokens is the gateway's to obey, and passes.
    """
    for field, is_asked in (
        _asked_of_sampling(request.sampling_params) | _asked_of(request)
    ).items():
        if is_asked:
            _refuse(field)


def _asked_of_sampling(params: pb.SamplingParams) -> dict[str, bool]:
    return {
        "structural_tag": params.HasField("structural_tag"),
        "truncate_prompt_tokens": params.HasField("truncate_prompt_tokens"),
    }


def _asked_of(request: pb.GenerateRequest) -> dict[str, bool]:
    return {
        "mm_inputs": request.HasField("mm_inputs"),
        "extra_mm_inputs": bool(request.extra_mm_inputs),
        "media_refs": request.HasField("media_refs"),
        "kv_transfer_params": request.HasField("kv_transfer_params"),
        "kv_transfer_params_json": request.HasField("kv_transfer_params_json"),
        "data_parallel_rank": request.data_parallel_rank != ONLY_REPLICA,
    }


def _constraint(params: pb.SamplingParams) -> Constraint | None:
    arm = params.WhichOneof("constraint")
    value = params.choice.choices if arm == "choice" else getattr(params, arm or "regex")
    return constraint_of_arm(arm, value)


def _refuse(field: str) -> None:
    raise InvalidRequest(f"{field} is not supported", param=field)


def _prompt(request: pb.GenerateRequest) -> str | tuple[int, ...]:
    if request.WhichOneof("input") == "tokenized":
        return tuple(request.tokenized.input_ids)
    return request.text

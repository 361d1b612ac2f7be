"""The metrics that vLLM has too, under its names and with its labels, so that its dashboards work.

model_name is the served name and engine the replica. Every sequence counts as a request there: one
that asks for n outputs counts n times, its prompt included.
"""

from collections.abc import Callable
from functools import partial

from common.distribution import Distribution
from common.metrics import MetricKind, MetricSpec, Samples
from coordinator.api.serving_state import ServingState, Spec

REPLICA = "0"
LABELS = ("model_name", "engine")
QUEUE_FULL = "max_num_queued_reqs"
"""vLLM's reason for a request that a full queue did not take."""


def _labels(state: ServingState) -> tuple[str, str]:
    return state.status.model, REPLICA


def _replica_metric(
    kind: MetricKind,
    name: str,
    help_text: str,
    read: Callable[[ServingState], float | Distribution],
) -> Spec:
    """A metric of the replica as a whole."""
    return MetricSpec(
        name=f"vllm:{name}",
        kind=kind,
        help=help_text,
        labels=LABELS,
        read=lambda state: {_labels(state): read(state)},
    )


_gauge = partial(_replica_metric, MetricKind.GAUGE)
_counter = partial(_replica_metric, MetricKind.COUNTER)
_histogram = partial(_replica_metric, MetricKind.HISTOGRAM)


def _token_histogram(
    name: str, help_text: str, read: Callable[[ServingState], Distribution]
) -> Spec:
    """Counts of tokens, with bounds up to the model's length; nothing before that is known."""

    def samples(state: ServingState) -> Samples:
        if state.max_model_len is None:
            return {}
        return {_labels(state): read(state).up_to(state.max_model_len)}

    return MetricSpec(
        name=f"vllm:{name}",
        kind=MetricKind.HISTOGRAM,
        help=help_text,
        labels=LABELS,
        read=samples,
    )


def _ended(state: ServingState) -> dict[tuple[str, ...], float]:
    ended = state.measures.requests.num_ended
    return {(*_labels(state), end): float(count) for end, count in ended.items()}


def _accepted_by_position(state: ServingState) -> dict[tuple[str, ...], float]:
    counts = state.status.num_accepted_by_position
    return {(*_labels(state), str(position)): float(count) for position, count in enumerate(counts)}


def _rejected(state: ServingState) -> dict[tuple[str, ...], float]:
    num_refused = state.measures.requests.num_refused["Overloaded"]
    return {(state.status.model, QUEUE_FULL): float(num_refused)}


SERVING_METRICS: tuple[Spec, ...] = (
    _gauge(
        "num_requests_running",
        "Requests that hold blocks.",
        lambda state: state.status.num_running,
    ),
    _gauge(
        "num_requests_waiting", "Requests in the queue.", lambda state: state.status.num_waiting
    ),
    _gauge(
        "kv_cache_usage_perc",
        "Share of the KV cache blocks that requests hold, 1 when all are.",
        lambda state: state.status.kv_usage,
    ),
    _counter(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda state: state.status.num_prompt_tokens,
    ),
    _counter(
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda state: state.status.num_cached_tokens,
    ),
    _counter(
        "num_preemptions",
        "How often a request lost its blocks to another one.",
        lambda state: state.status.num_preemptions,
    ),
    _counter(
        "spec_decode_num_drafts",
        "Rows of steps that checked draft tokens.",
        lambda state: state.status.num_drafts,
    ),
    _counter(
        "spec_decode_num_draft_tokens",
        "Draft tokens that were checked.",
        lambda state: state.status.num_draft_tokens,
    ),
    _counter(
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were right.",
        lambda state: state.status.num_accepted_tokens,
    ),
    MetricSpec(
        name="vllm:spec_decode_num_accepted_tokens_per_pos",
        kind=MetricKind.COUNTER,
        help="Draft tokens that were right, by their place among the drafts of a row.",
        labels=(*LABELS, "position"),
        read=_accepted_by_position,
    ),
    _counter(
        "prompt_tokens",
        "Prompt tokens of admitted requests.",
        lambda state: state.status.num_prompt_tokens,
    ),
    _counter(
        "prompt_tokens_cached",
        "Prompt tokens that were not computed, as they were found in the prefix cache.",
        lambda state: state.status.num_cached_tokens,
    ),
    _counter(
        "generation_tokens",
        "Generated tokens, as the usage of requests tells them.",
        lambda state: state.measures.requests.num_generated_tokens,
    ),
    MetricSpec(
        name="vllm:request_success",
        kind=MetricKind.COUNTER,
        help="Requests that have ended, by reason; a client that left counts as abort.",
        labels=(*LABELS, "finished_reason"),
        read=_ended,
    ),
    MetricSpec(
        name="vllm:admission_rejections",
        kind=MetricKind.COUNTER,
        help="Requests that a full queue did not take.",
        labels=("model_name", "reason"),
        read=_rejected,
    ),
    _histogram(
        "iteration_tokens_total",
        "Tokens of a step.",
        lambda state: state.measures.steps.num_tokens,
    ),
    _token_histogram(
        "request_prompt_tokens",
        "Prompt tokens of a request.",
        lambda state: state.measures.requests.prompt_tokens,
    ),
    _token_histogram(
        "request_generation_tokens",
        "Generated tokens of a request.",
        lambda state: state.measures.requests.generated_tokens,
    ),
    _token_histogram(
        "request_params_max_tokens",
        "Most tokens a request was allowed to generate.",
        lambda state: state.measures.requests.max_tokens,
    ),
    _histogram(
        "request_params_n",
        "Outputs asked for, of each prompt.",
        lambda state: state.measures.requests.num_choices,
    ),
    _histogram(
        "time_to_first_token_seconds",
        "Seconds from the arrival of a request to its first token.",
        lambda state: state.measures.requests.first_token,
    ),
    _histogram(
        "inter_token_latency_seconds",
        "Seconds between two tokens of a request.",
        lambda state: state.measures.requests.between_tokens,
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        "Mean seconds between two tokens of a request, 0 for one token.",
        lambda state: state.measures.requests.per_output_token,
    ),
    _histogram(
        "e2e_request_latency_seconds",
        "Seconds from the arrival of a request to its end.",
        lambda state: state.measures.requests.latency,
    ),
    _histogram(
        "request_queue_time_seconds",
        "Seconds a request waited until it ran first.",
        lambda state: state.measures.requests.queued,
    ),
    _histogram(
        "request_prefill_time_seconds",
        "Seconds from a request's first step to its first token.",
        lambda state: state.measures.requests.prefill,
    ),
    _histogram(
        "request_decode_time_seconds",
        "Seconds from a request's first token to its last.",
        lambda state: state.measures.requests.decode,
    ),
    _histogram(
        "request_inference_time_seconds",
        "Seconds from a request's first step to its last token.",
        lambda state: state.measures.requests.inference,
    ),
)

"""Frozen configuration slices, one per component, checked when made.

A slice is passed to the one part that uses it; derived values are properties. The texts under
`metadata` are the helps of the flags, whose names are the field names with dashes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from common.cudagraphs import CUDAGRAPH_MODES, MODE_HELP, SIZES_HELP, parse_capture_sizes
from common.errors import ConfigError
from common.plaintext import check_plaintext
from common.setting import setting
from common.speculation import SpeculationConfig

NO_QUANTIZATION = "none"
QUANTIZATIONS = (NO_QUANTIZATION, "int8", "int4")
"""Forms of the linear layers' weights; the first is the checkpoint's own."""


ATTENTION_BACKENDS = ("auto", "triton", "cpu", "torch")
"""Who computes attention on a worker; "auto" is the first of the others that fits."""

LOG_FORMATS = ("auto", "json", "text")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def _at_least(minimum: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < minimum:
            raise ConfigError(f"{name} must be at least {minimum}, not {value}")


def _metrics_host(metrics_listen: str | None) -> dict[str, str]:
    """The host metrics are told on, by the setting's name; empty where they are not."""
    if metrics_listen is None:
        return {}
    return {"metrics_listen": split_address("metrics_listen", metrics_listen)[0]}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def split_address(name: str, value: str) -> tuple[str, int]:
    """Split HOST:PORT ("[::1]:80" for IPv6); raises ConfigError naming the setting."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not _may_be_a_host(host) or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{name} must be HOST:PORT, not {value!r}")
    return host, int(port)


def _may_be_a_host(name: str) -> bool:
    """Whether a look-up takes the name; one that no DNS could hold breaks it before it begins."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def join_address(host: str, port: int) -> str:
    """Spell HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_url(name: str, value: str | None) -> None:
    if value is not None and not value.startswith(("http://", "https://")):
        raise ConfigError(f"{name} must be a URL such as http://HOST:4317, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model is served, under which name, in which type, up to which length."""

    model: str = setting("smollm2-135m", "bundled name, folder or hub id")
    served_model_name: str | None = setting(None, "name clients use (default: the model's own)")
    dtype: str = setting(
        "auto", "float32, bfloat16, float16 or auto (the model's, where workers are built for it)"
    )
    max_model_len: int | None = setting(
        None, "longest prompt plus output, tokens (default: the model's)"
    )
    wait_for_model: float = setting(
        0.0,
        "seconds to wait for a model that is not there yet, as while another process imports it",
    )
    quantization: str = setting(
        NO_QUANTIZATION, "none, int8 or int4: form of the weights on CPU workers, made at load"
    )

    def __post_init__(self) -> None:
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _at_least(2, max_model_len=self.max_model_len)
        if not self.wait_for_model >= 0:
            raise ConfigError(
                f"wait_for_model must be at least 0 seconds, not {self.wait_for_model}"
            )
        if not self.model:
            raise ConfigError("model must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How large the paged KV cache is; sizes in tokens, blocks and bytes."""

    block_size: int = setting(16, "token slots of a KV cache block")
    num_blocks: int | None = setting(None, "most KV cache blocks (default: what memory allows)")
    kv_cache_bytes: int = setting(1 << 30, "bytes of KV cache on a CPU worker")
    gpu_memory_utilization: float = setting(0.9, "share of GPU memory a worker may use")
    prefix_cache: bool = setting(
        default=True, help_text="reuse the keys and values of prompts that begin alike"
    )

    def __post_init__(self) -> None:
        _at_least(1, block_size=self.block_size, kv_cache_bytes=self.kv_cache_bytes)
        _at_least(2, num_blocks=self.num_blocks)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}"
            )


ACCELERATOR_STEP_TOKENS = 2048
CPU_STEP_TOKENS = 256
"""A CPU computes no faster in larger steps, and the first tokens of a step wait for its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The budgets of a step and of the queue."""

    max_num_seqs: int = setting(64, "most sequences running at once")
    max_num_batched_tokens: int | None = setting(
        None, "most tokens of one step (default: 2048, or 256 when a worker computes on a CPU)"
    )
    async_scheduling: bool = setting(
        default=True, help_text="plan each step before the tokens of the one before it are known"
    )
    max_steps_in_flight: int | None = setting(
        None, "steps in flight (default: pipeline stages, and 1 more with --async-scheduling)"
    )
    pp_cohorts: int | None = setting(None, "groups of sequences taking turns (default: stages)")
    max_waiting: int = setting(1024, "most requests waiting before new ones are refused")
    scheduling_policy: str = setting(
        "fcfs", "who runs first: fcfs (who came first) or priority (the smallest priority)"
    )
    max_prefill_chunk: int | None = setting(
        None, "most tokens of one prompt in a step that others need too (default: no limit)"
    )
    admission_watermark: float = setting(
        0.01, "share of the KV cache blocks that admission leaves free while others run"
    )
    check_state_every: int = setting(
        0, "steps between two comparisons of the books of scheduler and workers (0: none)"
    )

    def __post_init__(self) -> None:
        _at_least(
            1,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_steps_in_flight=self.max_steps_in_flight,
            pp_cohorts=self.pp_cohorts,
            max_waiting=self.max_waiting,
            max_prefill_chunk=self.max_prefill_chunk,
        )
        _one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        if not 0 <= self.admission_watermark < 1:
            raise ConfigError(
                f"admission_watermark must be in [0, 1), not {self.admission_watermark}"
            )
        _at_least(0, check_state_every=self.check_state_every)

    @property
    def sequence_limit(self) -> int:
        """Most sequences running at once: a step has a token for each of them."""
        return min(self.max_num_seqs, self.step_tokens)

    @property
    def step_tokens(self) -> int:
        """Most tokens of one step."""
        return self.max_num_batched_tokens or ACCELERATOR_STEP_TOKENS

    def for_devices(self, devices: Iterable[str]) -> "ScheduleConfig":
        """With the tokens of a step decided for a group of workers on these devices."""
        has_cpu = any(device == "cpu" for device in devices)
        step_tokens = CPU_STEP_TOKENS if has_cpu else ACCELERATOR_STEP_TOKENS
        return replace(self, max_num_batched_tokens=self.max_num_batched_tokens or step_tokens)

    @property
    def has_priorities(self) -> bool:
        """Whether the priority of a request counts before its arrival."""
        return self.scheduling_policy == "priority"

    def steps_in_flight(self, num_stages: int) -> int:
        """Most unanswered steps over a pipeline of num_stages."""
        return self.max_steps_in_flight or num_stages + self.async_scheduling

    @property
    def steps_of_cohort(self) -> int:
        """Most unanswered steps of one group of sequences."""
        return 2 if self.async_scheduling else 1

    @property
    def cohort_tokens(self) -> int:
        """Most tokens in the unanswered steps of one group of sequences."""
        return self.step_tokens * self.steps_of_cohort

    def num_cohorts(self, num_stages: int) -> int:
        """Groups of sequences that take turns; never more than steps in flight."""
        return min(self.pp_cohorts or num_stages, self.steps_in_flight(num_stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Where the workers come from."""

    executor: str | None = setting(
        None, "uniproc, local or remote (default: remote with --workers, else local)"
    )
    workers: tuple[str, ...] = setting((), "HOST:PORT list in stage order (executor remote)")
    pp: int | None = setting(None, "pipeline stages (default: 1, or the number of --workers)")
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    devices: tuple[str, ...] = setting((), "one device per local worker, in stage order")
    threads: int | None = setting(None, "compute threads per worker (default: cores / workers)")
    layers_per_stage: tuple[str, ...] = setting(
        (), "decoder layers of each stage, as 17,13 (default: an even split)"
    )
    attention_backend: str = setting(
        "auto", "auto, triton, cpu or torch, for workers that are started here"
    )
    cudagraph_mode: str = setting("auto", f"for workers that are started here: {MODE_HELP}")

    def __post_init__(self) -> None:
        if self.executor is not None:
            _one_of("executor", self.executor, ("uniproc", "local", "remote", "ray"))
        _at_least(1, pp=self.pp, threads=self.threads)
        _one_of("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        _one_of("cudagraph_mode", self.cudagraph_mode, CUDAGRAPH_MODES)
        for address in self.workers:
            split_address("workers", address)
        if self.executor == "remote" and not self.workers:
            raise ConfigError("executor remote needs --workers HOST:PORT,HOST:PORT in stage order")
        if self.executor not in (None, "remote") and self.workers:
            raise ConfigError(f"--workers goes with --executor remote, not {self.executor}")
        if self.workers and self.pp not in (None, len(self.workers)):
            raise ConfigError(f"--pp {self.pp} does not match the {len(self.workers)} --workers")
        if self.executor == "uniproc" and self.num_stages != 1:
            raise ConfigError("executor uniproc has one stage; use --executor local for --pp > 1")
        if self.devices and len(self.devices) != self.num_stages:
            raise ConfigError(
                f"--devices names {len(self.devices)} devices for {self.num_stages} workers"
            )
        if not all(count.isdecimal() and int(count) for count in self.layers_per_stage):
            raise ConfigError(
                f"--layers-per-stage must be positive integers such as 17,13, not "
                f"{','.join(self.layers_per_stage)!r}"
            )
        if self.layers_per_stage and len(self.layers_per_stage) != self.num_stages:
            raise ConfigError(
                f"--layers-per-stage counts the layers of {len(self.layers_per_stage)} stages, and "
                f"there are {self.num_stages}"
            )

    @property
    def layer_counts(self) -> tuple[int, ...]:
        """Decoder layers of each stage; empty: not told."""
        return tuple(map(int, self.layers_per_stage))

    @property
    def executor_kind(self) -> str:
        """The executor, with the default resolved."""
        return self.executor or ("remote" if self.workers else "local")

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.workers) or self.pp or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Where the coordinator listens and how it ends; port 0 picks a free one, -1 turns it off."""

    http_host: str = setting("127.0.0.1", "interface of both ports")
    grpc_port: int = setting(50050, "gRPC port (0: any free one)")
    http_port: int = setting(8000, "HTTP port (0: any free one, -1: none)")
    allow_plaintext: bool = setting(
        default=False, help_text="listen beyond loopback although nothing is encrypted"
    )
    drain_timeout: float = setting(30.0, "seconds running requests get after SIGTERM")
    metrics_listen: str | None = setting(
        None, "HOST:PORT of a port for metrics alone, beside /metrics of the HTTP port"
    )
    otlp_traces_endpoint: str | None = setting(
        None, "URL that OpenTelemetry spans are sent to over gRPC (needs the extra otel)"
    )
    log_format: str = setting("auto", "json, text, or auto: text on a terminal, else json")
    log_level: str = setting("INFO", "least level of a log line: DEBUG, INFO, WARNING or ERROR")

    def __post_init__(self) -> None:
        _check_url("otlp_traces_endpoint", self.otlp_traces_endpoint)
        _one_of("log_format", self.log_format, LOG_FORMATS)
        _one_of("log_level", self.log_level, LOG_LEVELS)
        for name, port in (("grpc_port", self.grpc_port), ("http_port", self.http_port)):
            if not -1 <= port <= 65535:
                raise ConfigError(f"{name} must be a port number, not {port}")
        if self.grpc_port < 0:
            raise ConfigError("grpc_port cannot be turned off")
        check_plaintext(
            is_allowed=self.allow_plaintext,
            http_host=self.http_host,
            **_metrics_host(self.metrics_listen),
        )
        if not self.drain_timeout >= 0:
            raise ConfigError(f"drain_timeout must be at least 0 seconds, not {self.drain_timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Everything a coordinator is told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything a worker process is told; what it computes comes from the coordinator."""

    listen: str = setting("127.0.0.1:0", "HOST:PORT of the gRPC port (port 0: any free one)")
    advertise: str | None = setting(None, "HOST:PORT others reach the gRPC port at")
    tensor_listen: str | None = setting(
        None, "HOST:PORT of the tensor socket (default: host of --listen, port 0)"
    )
    tensor_advertise: str | None = setting(
        None, "HOST or HOST:PORT peers reach the tensor socket at"
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    threads: int | None = setting(None, "compute threads (default: all cores)")
    attention_backend: str = setting(
        "auto", "auto, triton, cpu or torch; auto is the first of them that fits device and model"
    )
    cudagraph_mode: str = setting("auto", MODE_HELP)
    cudagraph_capture_sizes: tuple[str, ...] = setting((), SIZES_HELP)
    model: str | None = setting(None, "folder or name to load instead of the coordinator's")
    allow_plaintext: bool = setting(
        default=False, help_text="listen beyond loopback although nothing is encrypted"
    )
    drain_timeout: float = setting(30.0, "seconds a worker goes on serving after SIGTERM")
    hang_exit: float = setting(60.0, "seconds a worker may be stuck in a step before it exits")
    metrics_listen: str | None = setting(
        None, "HOST:PORT where Prometheus reads this worker's metrics over HTTP (default: nowhere)"
    )
    otlp_traces_endpoint: str | None = setting(
        None, "URL that OpenTelemetry spans are sent to over gRPC (needs the extra otel)"
    )
    log_format: str = setting("auto", "json, text, or auto: text on a terminal, else json")
    log_level: str = setting("INFO", "least level of a log line: DEBUG, INFO, WARNING or ERROR")

    def __post_init__(self) -> None:
        split_address("listen", self.listen)
        _check_url("otlp_traces_endpoint", self.otlp_traces_endpoint)
        _one_of("log_format", self.log_format, LOG_FORMATS)
        _one_of("log_level", self.log_level, LOG_LEVELS)
        if self.advertise is not None:
            split_address("advertise", self.advertise)
        if self.tensor_listen is not None:
            split_address("tensor_listen", self.tensor_listen)
        check_plaintext(
            is_allowed=self.allow_plaintext,
            listen=split_address("listen", self.listen)[0],
            tensor_listen=self.tensor_bind[0],
            **_metrics_host(self.metrics_listen),
        )
        _at_least(1, threads=self.threads)
        _one_of("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        _one_of("cudagraph_mode", self.cudagraph_mode, CUDAGRAPH_MODES)
        parse_capture_sizes(self.cudagraph_capture_sizes)
        if not self.drain_timeout >= 0:
            raise ConfigError(f"drain_timeout must be at least 0 seconds, not {self.drain_timeout}")
        if not self.hang_exit >= 0:
            raise ConfigError(f"hang_exit must be at least 0 seconds, not {self.hang_exit}")

    @property
    def tensor_bind(self) -> tuple[str, int]:
        """Host and port the tensor socket binds."""
        if self.tensor_listen is not None:
            return split_address("tensor_listen", self.tensor_listen)
        return split_address("listen", self.listen)[0], 0

"""Brings a group of workers to the point where each holds its layers.

Asks, claims and loads, all ranks at once; a worker that holds what it would be told to load is not
told again. Knows workers by `WorkerApi` alone.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.config import NO_QUANTIZATION, CoordinatorConfig, ScheduleConfig
from common.errors import ConfigError, Fenced, ModelError
from common.model_folder import ModelFolder
from common.worker_api import (
    PROTOCOL_VERSION,
    Authority,
    HeldStage,
    Layout,
    LoadModel,
    LoadReport,
    Rank,
    WorkerInfo,
)
from coordinator.executors.members import Member, describe_all, on_every_rank
from coordinator.executors.placement import stage_layers
from coordinator.executors.progress import ProgressListener, ignore_progress, loading

FRESH_STATE = "CREATED"
LOADED_STATE = "MODEL_LOADED"
GROUP_STATES = ("JOINED", "SERVING")
WARM_STATES = ("WARM", *GROUP_STATES)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRank:
    """A rank that holds its parameters: what it said of itself, its device, layers and report.

    num_loads: how often its process has read parameters. is_warm: its KV cache stands as well.
    """

    info: WorkerInfo
    device: str
    layers: range
    report: LoadReport
    num_loads: int
    is_warm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGroup:
    """Every rank with its parameters, in rank order, and who commands them; lengths in tokens.

    schedule: the budgets, decided for the workers' devices.
    num_blocks: KV cache blocks that every warm rank holds and the others adopt; None: not decided.
    """

    authority: Authority
    ranks: tuple[LoadedRank, ...]
    max_model_len: int
    schedule: ScheduleConfig
    num_blocks: int | None


async def load_group(
    members: Sequence[Member],
    config: CoordinatorConfig,
    folder: ModelFolder,
    *,
    authority: Authority | None = None,
    num_blocks: int | None = None,
    report: ProgressListener = ignore_progress,
) -> LoadedGroup:
    """Claim every rank, bind devices and load the layers that are not held yet.

    authority None: a new one, with an epoch above all that are reported. num_blocks: KV cache blocks
    the group has had so far; None: what warm ranks hold, if the configuration allows for it. Waits
    for workers that are not up yet. Raises ConfigError, Fenced, ModelError or WorkerLost, naming the
    rank.
    """
    max_model_len = resolve_max_model_len(config, folder)
    ranges = stage_layers(folder, config, num_stages=len(members))
    infos = await describe_all(members, report)
    check_fit_to_start(members, infos)
    authority = authority or _new_authority(infos)
    check_not_claimed(members, infos, authority)
    check_quantization(members, infos, config.model.quantization)
    dtype = resolve_dtype(config, folder, infos)
    schedule = config.schedule.for_devices(info.device for info in infos)
    requests = [
        _load_request(
            member.rank,
            Layout(num_stages=len(members)),
            layers,
            config=replace(config, schedule=schedule),
            folder=folder,
            dtype=dtype,
            max_model_len=max_model_len,
        )
        for member, layers in zip(members, ranges, strict=True)
    ]
    held = [_held_stage(info, request) for info, request in zip(infos, requests, strict=True)]
    if num_blocks is None:
        num_blocks = _kept_blocks(held, config.cache.num_blocks)
    report(loading([m.rank for m, stage in zip(members, held, strict=True) if stage is None]))

    async def load(member: Member) -> LoadedRank:
        stage = member.rank.stage
        return await _load_rank(
            member,
            authority,
            requests[stage],
            info=infos[stage],
            held=held[stage],
            num_blocks=num_blocks,
        )

    ranks = tuple(await on_every_rank(members, load))
    _log_loaded(members, ranks)
    check_same_weights(members, ranks)
    return LoadedGroup(
        authority=authority,
        ranks=ranks,
        max_model_len=max_model_len,
        schedule=schedule,
        num_blocks=num_blocks,
    )


def resolve_max_model_len(config: CoordinatorConfig, folder: ModelFolder) -> int:
    """Longest sequence in tokens: what was asked for, else what the model was made for."""
    asked, longest = config.model.max_model_len, folder.max_position_embeddings
    if asked is not None and asked > longest:
        raise ConfigError(
            f"--max-model-len {asked} is more than the {longest} tokens {folder.name} was made "
            f"for: lower it to {longest}"
        )
    return asked or longest


def resolve_dtype(
    config: CoordinatorConfig, folder: ModelFolder, infos: Sequence[WorkerInfo]
) -> str:
    """The type all ranks compute in: what was asked for, else the checkpoint's.

    A checkpoint's type that some rank has no instructions for gives way to float32, which is faster
    there and not less exact.
    """
    if config.model.dtype != "auto":
        return config.model.dtype
    if all(folder.dtype in info.dtypes for info in infos):
        return folder.dtype
    logger.info("no native %s on every worker, computing in float32", folder.dtype)
    return "float32"


def check_fit_to_start(members: Sequence[Member], infos: Sequence[WorkerInfo]) -> None:
    """Refuse workers of another protocol, or named twice."""
    member_by_incarnation: dict[str, Member] = {}
    for member, info in zip(members, infos, strict=True):
        if not info.protocol_min <= PROTOCOL_VERSION <= info.protocol_max:
            raise ConfigError(
                f"{member} speaks protocol {info.protocol_min} to {info.protocol_max} and this "
                f"coordinator {PROTOCOL_VERSION}: run the same release on both"
            )
        other = member_by_incarnation.setdefault(info.incarnation, member)
        if other is not member:
            raise ConfigError(
                f"{other} and {member} are one process: name a different worker for each stage"
            )


def check_not_claimed(
    members: Sequence[Member], infos: Sequence[WorkerInfo], authority: Authority
) -> None:
    """Raise Fenced when a worker obeys a coordinator that came after this one."""
    for member, info in zip(members, infos, strict=True):
        if info.epoch > authority.epoch:
            raise Fenced(
                f"{member} obeys a newer coordinator, of epoch {info.epoch}; this one is of epoch "
                f"{authority.epoch} and gives way"
            )


def check_same_weights(members: Sequence[Member], ranks: Sequence[LoadedRank]) -> None:
    """Raise ModelError when ranks have read different checkpoints, which would answer nonsense."""
    for member, part in zip(members, ranks, strict=True):
        if part.report.weights_digest != ranks[0].report.weights_digest:
            raise ModelError(
                f"{members[0]} and {member} hold different weights: give both the same model files "
                f"and restart the one that read others"
            )


def check_quantization(
    members: Sequence[Member], infos: Sequence[WorkerInfo], quantization: str
) -> None:
    """Refuse workers that cannot hold weights in the form asked for."""
    if quantization == NO_QUANTIZATION:
        return
    for member, info in zip(members, infos, strict=True):
        if quantization not in info.quantizations:
            raise ConfigError(
                f"{member} computes on {info.device} and cannot hold weights as {quantization}: "
                f"leave --quantization away, or use workers with --device cpu"
            )


def _new_authority(infos: Sequence[WorkerInfo]) -> Authority:
    epoch = 1 + max(info.epoch for info in infos)
    return Authority(coordinator_id=uuid.uuid4().hex, epoch=epoch)


def _held_stage(info: WorkerInfo, request: LoadModel) -> HeldStage | None:
    """What a worker holds, if that is what it would be told to load and nothing is half done."""
    held = info.held_stage
    is_whole = info.state == LOADED_STATE or info.state in WARM_STATES
    return held if held is not None and is_whole and held.request == request else None


def _kept_blocks(held: Sequence[HeldStage | None], configured: int | None) -> int | None:
    """The KV cache blocks of the ranks that hold some, when they agree and are what was asked for."""
    counts = {stage.num_blocks for stage in held if stage is not None and stage.num_blocks}
    if len(counts) != 1:
        return None
    (num_blocks,) = counts
    return num_blocks if configured in (None, num_blocks) else None


async def _load_rank(
    member: Member,
    authority: Authority,
    request: LoadModel,
    *,
    info: WorkerInfo,
    held: HeldStage | None,
    num_blocks: int | None,
) -> LoadedRank:
    worker, device, report = member.worker, info.device, held.report if held else None
    is_warm = held is not None and held.num_blocks > 0 and held.num_blocks == num_blocks
    num_loads = info.num_loads
    if info.state == FRESH_STATE:
        device = await worker.init_device(authority)
    if report is None or (info.state != LOADED_STATE and not is_warm):
        if info.state in GROUP_STATES and info.epoch == authority.epoch:
            await worker.end_generation(authority, info.generation)
        report = await worker.load_model(authority, request)
        num_loads += 1
    return LoadedRank(
        info=info,
        device=device,
        layers=range(request.first_layer, request.end_layer),
        report=report,
        num_loads=num_loads,
        is_warm=is_warm,
    )


def _load_request(
    rank: Rank,
    layout: Layout,
    layers: range,
    *,
    config: CoordinatorConfig,
    folder: ModelFolder,
    dtype: str,
    max_model_len: int,
) -> LoadModel:
    # A remote worker finds the model on its own machine, under the name the user gave.
    is_elsewhere = config.cluster.executor_kind == "remote"
    return LoadModel(
        model=config.model.model if is_elsewhere else str(folder.path),
        dtype=dtype,
        rank=rank,
        layout=layout,
        first_layer=layers.start,
        end_layer=layers.stop,
        max_model_len=max_model_len,
        max_num_batched_tokens=config.schedule.step_tokens,
        max_num_seqs=config.schedule.max_num_seqs,
        block_size=config.cache.block_size,
        quantization=config.model.quantization,
        speculation=config.speculation,
    )


def _log_loaded(members: Sequence[Member], ranks: Sequence[LoadedRank]) -> None:
    for member, part in zip(members, ranks, strict=True):
        logger.info(
            "model loaded",
            extra={
                "rank": str(member.rank),
                "address": member.worker.address,
                "device": part.device,
                "layers": f"{part.layers.start}-{part.layers.stop - 1}",
                "parameter_bytes": part.report.parameter_bytes,
                "bytes_read": part.report.bytes_read,
                "seconds": part.report.seconds,
                "num_loads": part.num_loads,
            },
        )

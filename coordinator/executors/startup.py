"""Brings a group of fresh workers to the point where each holds its layers.

Asks, claims and loads, all ranks at once. Knows workers by `WorkerApi` alone.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from common.config import CoordinatorConfig
from common.errors import ConfigError, WrongState
from common.model_folder import ModelFolder
from common.worker_api import (
    PROTOCOL_VERSION,
    Authority,
    Layout,
    LoadModel,
    LoadReport,
    Rank,
    WorkerInfo,
)
from coordinator.executors.members import Member, describe, on_every_rank
from coordinator.executors.placement import split_layers

FRESH_STATE = "CREATED"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRank:
    """A rank that holds its parameters: what it said of itself, its device, layers and report."""

    info: WorkerInfo
    device: str
    layers: range
    report: LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGroup:
    """Every rank with its parameters, in rank order, and who commands them; lengths in tokens."""

    authority: Authority
    ranks: tuple[LoadedRank, ...]
    max_model_len: int


async def load_group(
    members: Sequence[Member], config: CoordinatorConfig, folder: ModelFolder
) -> LoadedGroup:
    """Claim every rank with an epoch above all they report, bind devices and load the layers.

    Waits for workers that are not up yet. Raises ConfigError, WrongState, ModelError or WorkerLost,
    naming the rank.
    """
    max_model_len = resolve_max_model_len(config, folder)
    ranges = split_layers(folder.num_layers, len(members))
    infos = await on_every_rank(members, describe)
    check_fit_to_start(members, infos)
    epoch = 1 + max(info.epoch for info in infos)
    authority = Authority(coordinator_id=uuid.uuid4().hex, epoch=epoch)
    dtype = resolve_dtype(config, folder, infos)
    devices = await on_every_rank(members, lambda m: m.worker.init_device(authority))
    layout = Layout(num_stages=len(members))
    requests = {
        member.rank: _load_request(
            member.rank,
            layout,
            layers,
            config=config,
            folder=folder,
            dtype=dtype,
            max_model_len=max_model_len,
        )
        for member, layers in zip(members, ranges, strict=True)
    }
    reports = await on_every_rank(
        members, lambda m: m.worker.load_model(authority, requests[m.rank])
    )
    ranks = tuple(
        LoadedRank(info=info, device=device, layers=layers, report=report)
        for info, device, layers, report in zip(infos, devices, ranges, reports, strict=True)
    )
    _log_loaded(members, ranks)
    return LoadedGroup(authority=authority, ranks=ranks, max_model_len=max_model_len)


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
    """Refuse workers of another protocol, claimed before, or named twice."""
    member_by_incarnation: dict[str, Member] = {}
    for member, info in zip(members, infos, strict=True):
        if not info.protocol_min <= PROTOCOL_VERSION <= info.protocol_max:
            raise ConfigError(
                f"{member} speaks protocol {info.protocol_min} to {info.protocol_max} and this "
                f"coordinator {PROTOCOL_VERSION}: run the same release on both"
            )
        if info.state != FRESH_STATE:
            raise WrongState(
                f"{member} is {info.state}: it was claimed by an earlier coordinator; restart it"
            )
        other = member_by_incarnation.setdefault(info.incarnation, member)
        if other is not member:
            raise ConfigError(
                f"{other} and {member} are one process: name a different worker for each stage"
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
        max_num_batched_tokens=config.schedule.max_num_batched_tokens,
        max_num_seqs=config.schedule.max_num_seqs,
        block_size=config.cache.block_size,
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
            },
        )

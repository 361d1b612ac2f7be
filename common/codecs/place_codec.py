"""Protobuf spelling of ranks and of the shape of a replica; what cannot be meant raises InvalidRequest."""

from stepwire.v1 import worker_pb2 as pb

from common.errors import InvalidRequest
from common.worker_api import Layout, Rank


def require(is_valid: bool, field: str, rule: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Raise InvalidRequest naming the field whose rule is broken."""
    if not is_valid:
        raise InvalidRequest(f"{field} {rule}", param=field)


def encode_rank(rank: Rank) -> pb.Rank:
    """Spell a rank."""
    return pb.Rank(replica=rank.replica, stage=rank.stage, tensor_parallel=rank.tensor_parallel)


def decode_rank(rank: pb.Rank) -> Rank:
    """Read a rank."""
    return Rank(replica=rank.replica, stage=rank.stage, tensor_parallel=rank.tensor_parallel)


def encode_layout(layout: Layout) -> pb.Layout:
    """Spell a replica's shape."""
    return pb.Layout(num_stages=layout.num_stages, tensor_parallel_size=layout.tensor_parallel_size)


def decode_layout(layout: pb.Layout) -> Layout:
    """Read a replica's shape."""
    require(layout.num_stages >= 1, "layout.num_stages", "must be at least 1")
    require(layout.tensor_parallel_size >= 1, "layout.tensor_parallel_size", "must be at least 1")
    return Layout(num_stages=layout.num_stages, tensor_parallel_size=layout.tensor_parallel_size)


def decode_place(rank: pb.Rank, layout: pb.Layout) -> tuple[Rank, Layout]:
    """Read a rank and the shape it has a place in."""
    place, shape = decode_rank(rank), decode_layout(layout)
    require(place.stage < shape.num_stages, "rank.stage", "must be a stage of the layout")
    require(
        place.tensor_parallel < shape.tensor_parallel_size,
        "rank.tensor_parallel",
        "must be an index of the layout",
    )
    return place, shape

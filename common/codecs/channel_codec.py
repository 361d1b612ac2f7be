"""The header part of messages on tensor sockets; malformed headers raise TensorError."""

from dataclasses import dataclass

from google.protobuf.message import DecodeError
from stepwire.v1 import channel_pb2 as pb

from common.codecs.place_codec import decode_rank, encode_rank
from common.codecs.step_codec import decode_step_key, encode_step_key
from common.codecs.tensor_codec import decode_descriptors, encode_descriptor
from common.errors import InvalidStep, TensorError
from common.step import StepKey
from common.tensors import TensorDescriptor
from common.worker_api import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloHeader:
    """A sender has connected."""

    epoch: int
    generation: int
    sender: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsHeader:
    """Tensors of a step follow, one part per descriptor."""

    sender: Rank
    key: StepKey
    descriptors: tuple[TensorDescriptor, ...]


def encode_channel_header(header: HelloHeader | TensorsHeader) -> bytes:
    """The bytes of a header."""
    if isinstance(header, HelloHeader):
        spelled = pb.ChannelHeader(
            epoch=header.epoch,
            generation=header.generation,
            sender=encode_rank(header.sender),
            hello=pb.ChannelHello(),
        )
    else:
        spelled = pb.ChannelHeader(
            epoch=header.key.step_id.epoch,
            generation=header.key.step_id.generation,
            sender=encode_rank(header.sender),
            tensors=pb.ChannelTensors(
                key=encode_step_key(header.key),
                descriptors=[encode_descriptor(each) for each in header.descriptors],
            ),
        )
    return spelled.SerializeToString()


def decode_channel_header(part: bytes) -> HelloHeader | TensorsHeader:
    """Read a header; the shapes and sizes in it are checked before any tensor is looked at."""
    try:
        spelled = pb.ChannelHeader.FromString(part)
    except DecodeError as error:
        raise TensorError("the header is no ChannelHeader message") from error
    sender = decode_rank(spelled.sender)
    if spelled.HasField("hello"):
        return HelloHeader(epoch=spelled.epoch, generation=spelled.generation, sender=sender)
    if not spelled.HasField("tensors"):
        raise TensorError("the header holds neither hello nor tensors")
    try:
        key = decode_step_key(spelled.tensors.key)
    except InvalidStep as error:
        raise TensorError(f"the header has no valid step key: {error}") from error
    if (key.step_id.epoch, key.step_id.generation) != (spelled.epoch, spelled.generation):
        raise TensorError(f"the header of {key} names another generation")
    return TensorsHeader(
        sender=sender, key=key, descriptors=decode_descriptors(spelled.tensors.descriptors)
    )

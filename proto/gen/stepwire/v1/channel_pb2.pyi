from stepwire.v1 import step_pb2 as _step_pb2
from stepwire.v1 import tensor_pb2 as _tensor_pb2
from stepwire.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChannelHeader(_message.Message):
    __slots__ = ("epoch", "generation", "sender", "hello", "tensors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    generation: int
    sender: _worker_pb2.Rank
    hello: ChannelHello
    tensors: ChannelTensors
    def __init__(self, epoch: _Optional[int] = ..., generation: _Optional[int] = ..., sender: _Optional[_Union[_worker_pb2.Rank, _Mapping]] = ..., hello: _Optional[_Union[ChannelHello, _Mapping]] = ..., tensors: _Optional[_Union[ChannelTensors, _Mapping]] = ...) -> None: ...

class ChannelHello(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChannelTensors(_message.Message):
    __slots__ = ("key", "descriptors")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    key: _step_pb2.StepKey
    descriptors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorDescriptor]
    def __init__(self, key: _Optional[_Union[_step_pb2.StepKey, _Mapping]] = ..., descriptors: _Optional[_Iterable[_Union[_tensor_pb2.TensorDescriptor, _Mapping]]] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_BFLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT8: _ClassVar[ElementType]
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_FLOAT16: ElementType
ELEMENT_TYPE_BFLOAT16: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_UINT8: ElementType

class TensorDescriptor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "num_bytes", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    num_bytes: int
    checksum: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., num_bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class InlinePayload(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, tensors: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChannelPayload(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

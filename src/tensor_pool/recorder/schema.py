"""The protobuf messages of a recording, as the descriptors that travel inside each segment.

Pictures are `foxglove.RawImage` with our fields under numbers from 1001 on, which viewers pass over; every other
tensor is `tensor_pool.Tensor`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP

RAW_IMAGE: Final = "foxglove.RawImage"
TENSOR: Final = "tensor_pool.Tensor"
GAP: Final = "tensor_pool.Gap"


class Field(IntEnum):
    """Field numbers. Those below 1000 are foxglove's."""

    TIMESTAMP = 1
    WIDTH = 2
    HEIGHT = 3
    ENCODING = 4
    STEP = 5
    DATA = 6
    FRAME_ID = 7
    EPOCH = 1001
    SEQ = 1002
    TIMESTAMP_NS = 1003
    PUBLISH_TIMESTAMP_NS = 1004
    META_VERSION = 1005
    TRACE_ID = 1006
    DTYPE = 1007
    MAJOR_ORDER = 1008
    SHAPE = 1009
    STRIDES = 1010
    CRC32C = 1011
    HEADER_CRC32C = 1012
    PADDING = 1013
    LAST_SEQ = 1014
    CAUSE = 1015


_FIXED64, _FIXED32 = FieldDescriptorProto.TYPE_FIXED64, FieldDescriptorProto.TYPE_FIXED32
_UINT32, _STRING, _BYTES = FieldDescriptorProto.TYPE_UINT32, FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES

_PICTURE: Final = {Field.WIDTH: _FIXED32, Field.HEIGHT: _FIXED32, Field.ENCODING: _STRING, Field.STEP: _FIXED32}
_FRAME: Final = {
    Field.DATA: _BYTES,
    Field.FRAME_ID: _STRING,
    Field.EPOCH: _FIXED64,
    Field.SEQ: _FIXED64,
    Field.TIMESTAMP_NS: _FIXED64,
    Field.PUBLISH_TIMESTAMP_NS: _FIXED64,
    Field.META_VERSION: _FIXED32,
    Field.TRACE_ID: _FIXED64,
    Field.DTYPE: _UINT32,
    Field.MAJOR_ORDER: _UINT32,
    Field.SHAPE: _UINT32,
    Field.STRIDES: _UINT32,
    Field.CRC32C: _FIXED32,
    Field.HEADER_CRC32C: _FIXED32,
    Field.PADDING: _BYTES,
}
_GAP: Final = {
    Field.EPOCH: _FIXED64,
    Field.SEQ: _FIXED64,
    Field.HEADER_CRC32C: _FIXED32,
    Field.LAST_SEQ: _FIXED64,
    Field.CAUSE: _STRING,
}
_REPEATED: Final = (Field.SHAPE, Field.STRIDES)
_OPTIONAL: Final = (Field.PUBLISH_TIMESTAMP_NS,)


@cache
def descriptor_set(schema: str) -> bytes:
    """The message `schema` and what it refers to, as MCAP wants it in a schema record."""
    package, name = schema.rsplit(".", 1)
    file = FileDescriptorProto(name=f"{package}/{name}.proto", package=package, syntax="proto3", dependency=[TIMESTAMP.name])
    message = file.message_type.add(name=name)
    if schema != GAP:
        message.field.add(
            name="timestamp",
            number=Field.TIMESTAMP,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            type_name=".google.protobuf.Timestamp",
        )
    fields = {RAW_IMAGE: _PICTURE | _FRAME, TENSOR: _FRAME, GAP: _GAP}[schema]
    for field, kind in fields.items():
        repeated = field in _REPEATED
        added = message.field.add(
            name="first_seq" if schema == GAP and field is Field.SEQ else field.name.lower(),
            number=field,
            label=FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL,
            type=kind,
        )
        if field in _OPTIONAL:
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{added.name}")
    timestamp = FileDescriptorProto()
    TIMESTAMP.CopyToProto(timestamp)
    return FileDescriptorSet(file=[timestamp, file]).SerializeToString(deterministic=True)

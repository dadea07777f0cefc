"""Numbers of the layout that the specification gives in prose and the schemas do not hold."""

from __future__ import annotations

MESSAGE_HEADER_FIELDS = ("blockLength", "templateId", "schemaId", "version")
MESSAGE_HEADER_BYTES = 8
GROUP_HEADER_BYTES = 4
VAR_DATA_LENGTH_BYTES = 4

SUPERBLOCK_MAGIC = 0x544F504C53484D31
"""Stored little-endian, so that a file starts with the bytes 31 4D 48 53 4C 50 4F 54 (E1)."""
LAYOUT_VERSION = 1
BODIES_WITHOUT_HEADER = ("ShmRegionSuperblock", "SlotHeader")
"""These lie in shared memory as bare bodies; every other message starts with the 8-byte header."""
EMBEDDED_MESSAGE = "TensorHeader"
"""What SlotHeader.headerBytes holds, with its message header."""

IN_SHARED_MEMORY = (*BODIES_WITHOUT_HEADER, EMBEDDED_MESSAGE)
"""Never sent over Aeron, so `decode(data)` of the module does not accept them."""

MORE_NULLS = {("FrameDescriptor", "traceId"): 2**64 - 1}
"""Read as absent beside the null of the schema: generated code of the reference compiler writes all ones for an absent trace id (E102)."""
ZERO_MEANS_ABSENT = {("FrameDescriptor", "traceId")}
"""Here the null may be given as a value: a trace id of 0 is no trace id."""
READ_ALIASES = {(901, "Bool"): {2: "TRUE"}}
"""One public implementation sends HUGEPAGES = 2 for require_hugepages (E103)."""
GROUP_BLOCK_LENGTHS = {(910, "tags"): (0, 4)}
"""Accepted when read; the first is written. The printed schema says 4, the reference compiler 0; an entry has the same bytes (E82)."""
TRAILING_DATA_MAY_BE_MISSING = (910,)
"""Var-data at the end of a message that the peer left out is empty (E88)."""
HEADER_RULES = {900: "W-16-1", 901: "D-AppendixA-1", 902: "B-11-1", 910: "S-10-6"}

MESSAGE_WORDS = {
    "ShmPoolAnnounce": "Where the regions of a stream are and how they are laid out. Sent about once a second and on every change.",
    "ConsumerHello": "A consumer says who it is, how it wants to read, and whether it asks for private streams.",
    "ConsumerConfig": "The answer to a ConsumerHello: how this consumer is to read. An empty channel with id 0 grants no private stream.",
    "FrameDescriptor": "One committed frame: the slot is `seq & (header_nslots - 1)` of the header ring that belongs to `epoch`.",
    "FrameProgress": "How many bytes of a frame that is still being written are there. Never a replacement of its FrameDescriptor.",
    "QosConsumer": "What one consumer has seen and lost, about once a second.",
    "QosProducer": "How far one producer has come, about once a second.",
    "ShmRegionSuperblock": "The first 64 bytes of every region in shared memory, bare: no message header.",
    "SlotHeader": "One slot of 256 bytes of the header ring, bare: no message header. `seq_commit` is `seq << 1`, plus 1 when committed.",
    "TensorHeader": "Shape, type and strides of one frame. Lies with its message header inside of SlotHeader.",
    "DataSourceAnnounce": "Name and summary of a data source, and the version of its metadata.",
    "DataSourceMeta": "The attributes of a data source at one version of its metadata.",
    "ControlResponse": "A refusal, or an acknowledgement, on the control stream.",
    "ShmAttachRequest": "A client asks the driver for a lease on a stream.",
    "ShmAttachResponse": "The driver's answer to ShmAttachRequest. Optional fields are there when `code` is OK, else they are None.",
    "ShmDetachRequest": "A client gives its lease back.",
    "ShmDetachResponse": "The driver's answer to ShmDetachRequest.",
    "ShmLeaseKeepalive": "A client says that it still uses its lease. Nobody answers it.",
    "ShmDriverShutdown": "The driver stops: every lease of it ends now.",
    "ShmLeaseRevoked": "The driver ends one lease, and says why.",
    "BridgeFrameChunk": "A part of one frame on its way to another host. The first chunk brings the slot of 256 bytes.",
    "DiscoveryRequest": "Asks which streams there are. Filters that are None or empty match everything; the others all have to match.",
    "DiscoveryResponse": "The streams that matched a DiscoveryRequest, and where the driver of each is reached.",
}
GROUP_WORDS = {
    "payloadPools": "One payload pool: as many slots as the header ring, each of `stride_bytes`.",
    "attributes": "One attribute: `format` is the media type of `value`.",
    "tags": "One tag, compared byte for byte.",
    "results": "One stream that matched, with what a client needs to attach to it.",
}

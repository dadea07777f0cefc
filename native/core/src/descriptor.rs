//! `FrameDescriptor` (wire 10.2.1): what says that a frame is there.
use crate::layout::{MESSAGE_HEADER_LENGTH, SCHEMA_VERSION_CONTROL, frame_descriptor as layout, message_header};

pub const LENGTH: usize = MESSAGE_HEADER_LENGTH + layout::BLOCK_LENGTH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub stream_id: u32,
    pub epoch: u64,
    pub seq: u64,
    pub timestamp_ns: Option<u64>,
    pub meta_version: u32,
    pub trace_id: u64,
}

impl Descriptor {
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let mut put = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        put(message_header::BLOCK_LENGTH_OFFSET, &(layout::BLOCK_LENGTH as u16).to_le_bytes());
        put(message_header::TEMPLATE_ID_OFFSET, &layout::TEMPLATE_ID.to_le_bytes());
        put(message_header::SCHEMA_ID_OFFSET, &layout::SCHEMA_ID.to_le_bytes());
        put(message_header::VERSION_OFFSET, &SCHEMA_VERSION_CONTROL.to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::STREAM_ID_OFFSET, &self.stream_id.to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::EPOCH_OFFSET, &self.epoch.to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::SEQ_OFFSET, &self.seq.to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::TIMESTAMP_NS_OFFSET, &self.timestamp_ns.unwrap_or(layout::TIMESTAMP_NS_NULL).to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::META_VERSION_OFFSET, &self.meta_version.to_le_bytes());
        put(MESSAGE_HEADER_LENGTH + layout::TRACE_ID_OFFSET, &self.trace_id.to_le_bytes());
        bytes
    }
}

/// What a message on a descriptor stream is to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Descriptor(Descriptor),
    /// A message of the protocol that is not for readers of frames.
    Other,
    /// Short, of another version, or of another block length.
    Malformed,
}

pub fn decode(message: &[u8]) -> Received {
    if message.len() < MESSAGE_HEADER_LENGTH {
        return Received::Malformed;
    }
    let u16_at = |offset: usize| u16::from_le_bytes([message[offset], message[offset + 1]]);
    if u16_at(message_header::SCHEMA_ID_OFFSET) != layout::SCHEMA_ID || u16_at(message_header::TEMPLATE_ID_OFFSET) != layout::TEMPLATE_ID {
        return Received::Other;
    }
    if message.len() < LENGTH
        || u16_at(message_header::VERSION_OFFSET) != SCHEMA_VERSION_CONTROL
        || usize::from(u16_at(message_header::BLOCK_LENGTH_OFFSET)) != layout::BLOCK_LENGTH
    {
        return Received::Malformed;
    }
    let body = &message[MESSAGE_HEADER_LENGTH..];
    let u32_at = |offset: usize| u32::from_le_bytes(body[offset..offset + 4].try_into().expect("four bytes"));
    let u64_at = |offset: usize| u64::from_le_bytes(body[offset..offset + 8].try_into().expect("eight bytes"));
    let trace_id = u64_at(layout::TRACE_ID_OFFSET);
    Received::Descriptor(Descriptor {
        stream_id: u32_at(layout::STREAM_ID_OFFSET),
        epoch: u64_at(layout::EPOCH_OFFSET),
        seq: u64_at(layout::SEQ_OFFSET),
        timestamp_ns: Some(u64_at(layout::TIMESTAMP_NS_OFFSET)).filter(|value| *value != layout::TIMESTAMP_NS_NULL),
        meta_version: u32_at(layout::META_VERSION_OFFSET),
        // the reference compiler's own null beside the schema's
        trace_id: if trace_id == u64::MAX { layout::TRACE_ID_NULL } else { trace_id },
    })
}

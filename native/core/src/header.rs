//! A slot's header: written into words, and read and checked from a copy. Nothing of it is believed before `parse`.
use crate::layout::{SCHEMA_VERSION_CONTROL, dtype, major_order, progress_unit, slot, slot_header, tensor_header};
use crate::ring::WORDS_PER_SLOT;

pub const MAX_DIMS: usize = tensor_header::MAX_DIMS;
const BODY: usize = slot::TENSOR_HEADER_OFFSET;
/// The message header of the embedded TensorHeader: block length, template, schema, version.
const EMBEDDED_HEADER: [u16; 4] =
    [tensor_header::BLOCK_LENGTH as u16, tensor_header::TEMPLATE_ID, tensor_header::SCHEMA_ID, SCHEMA_VERSION_CONTROL];

/// What a producer says about a frame. Strides are never written: our frames are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    pub dtype: i16,
    pub major_order: i16,
    pub ndims: u8,
    pub dims: [i32; MAX_DIMS],
    pub values_len_bytes: u32,
    pub timestamp_ns: u64,
    pub meta_version: u32,
}

/// What a checked header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotFields {
    pub info: FrameInfo,
    pub pool_id: u16,
    pub payload_slot: u32,
    /// Bytes between neighbours of each dimension, None when the tensor is contiguous.
    pub strides: Option<[i32; MAX_DIMS]>,
}

/// Bytes an element takes, None for a number that is no dtype.
pub fn element_bytes(code: i16) -> Option<u64> {
    match code {
        dtype::UINT8 | dtype::INT8 | dtype::BOOLEAN | dtype::BYTES | dtype::BIT => Some(1),
        dtype::UINT16 | dtype::INT16 => Some(2),
        dtype::UINT32 | dtype::INT32 | dtype::FLOAT32 => Some(4),
        dtype::UINT64 | dtype::INT64 | dtype::FLOAT64 => Some(8),
        _ => None,
    }
}

/// The words of a slot but for the first, which is the commit word's and stays 0 here.
pub fn compose(info: &FrameInfo, pool_id: u16, payload_slot: u32) -> [u64; WORDS_PER_SLOT] {
    let mut bytes = [0_u8; slot::LENGTH];
    put(&mut bytes, slot_header::VALUES_LEN_BYTES_OFFSET, &info.values_len_bytes.to_le_bytes());
    put(&mut bytes, slot_header::PAYLOAD_SLOT_OFFSET, &payload_slot.to_le_bytes());
    put(&mut bytes, slot_header::POOL_ID_OFFSET, &pool_id.to_le_bytes());
    put(&mut bytes, slot_header::TIMESTAMP_NS_OFFSET, &info.timestamp_ns.to_le_bytes());
    put(&mut bytes, slot_header::META_VERSION_OFFSET, &info.meta_version.to_le_bytes());
    put(&mut bytes, slot::HEADER_BYTES_LENGTH_OFFSET, &slot::HEADER_BYTES_LENGTH.to_le_bytes());
    for (index, value) in EMBEDDED_HEADER.into_iter().enumerate() {
        put(&mut bytes, slot::EMBEDDED_HEADER_OFFSET + 2 * index, &value.to_le_bytes());
    }
    put(&mut bytes, BODY + tensor_header::DTYPE_OFFSET, &info.dtype.to_le_bytes());
    put(&mut bytes, BODY + tensor_header::MAJOR_ORDER_OFFSET, &info.major_order.to_le_bytes());
    bytes[BODY + tensor_header::NDIMS_OFFSET] = info.ndims;
    for (index, dim) in info.dims.iter().take(info.ndims.into()).enumerate() {
        put(&mut bytes, BODY + tensor_header::DIMS_OFFSET + 4 * index, &dim.to_le_bytes());
    }
    let mut words = [0; WORDS_PER_SLOT];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

/// Which rule a header broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeader(pub &'static str);

type Checked<T> = Result<T, InvalidHeader>;

/// Read the header of a frame from a copy of its slot; `index` is where the slot is in its ring.
pub fn parse(words: &[u64; WORDS_PER_SLOT], index: usize) -> Checked<SlotFields> {
    let mut bytes = [0_u8; slot::LENGTH];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    let u16_at = |offset: usize| u16::from_le_bytes([bytes[offset], bytes[offset + 1]]);
    let i16_at = |offset: usize| i16::from_le_bytes([bytes[offset], bytes[offset + 1]]);
    let u32_at = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"));
    let u64_at = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"));

    ensure(u32_at(slot::HEADER_BYTES_LENGTH_OFFSET) == slot::HEADER_BYTES_LENGTH, "header length")?;
    for (field, expected) in EMBEDDED_HEADER.into_iter().enumerate() {
        ensure(u16_at(slot::EMBEDDED_HEADER_OFFSET + 2 * field) == expected, "embedded message header")?;
    }
    ensure(u32_at(slot_header::PAYLOAD_OFFSET_OFFSET) == 0, "payload offset")?;
    let payload_slot = u32_at(slot_header::PAYLOAD_SLOT_OFFSET);
    ensure(payload_slot as usize == index, "payload slot")?;

    let mut dims = [0; MAX_DIMS];
    let mut strides = [0; MAX_DIMS];
    let ndims = bytes[BODY + tensor_header::NDIMS_OFFSET];
    ensure((1..=MAX_DIMS as u8).contains(&ndims), "number of dimensions")?;
    for dimension in 0..usize::from(ndims) {
        dims[dimension] = u32_at(BODY + tensor_header::DIMS_OFFSET + 4 * dimension) as i32;
        strides[dimension] = u32_at(BODY + tensor_header::STRIDES_OFFSET + 4 * dimension) as i32;
    }
    let info = FrameInfo {
        dtype: i16_at(BODY + tensor_header::DTYPE_OFFSET),
        major_order: i16_at(BODY + tensor_header::MAJOR_ORDER_OFFSET),
        ndims,
        dims,
        values_len_bytes: u32_at(slot_header::VALUES_LEN_BYTES_OFFSET),
        timestamp_ns: u64_at(slot_header::TIMESTAMP_NS_OFFSET),
        meta_version: u32_at(slot_header::META_VERSION_OFFSET),
    };
    let layout = check_layout(&info, &strides)?;
    let unit = bytes[BODY + tensor_header::PROGRESS_UNIT_OFFSET];
    check_progress(unit, u32_at(BODY + tensor_header::PROGRESS_STRIDE_BYTES_OFFSET), &layout)?;
    let strides = (!layout.is_contiguous).then_some(layout.strides);
    Ok(SlotFields { info, pool_id: u16_at(slot_header::POOL_ID_OFFSET), payload_slot, strides })
}

/// Whether a reader takes a frame of that shape, so that nobody publishes what nobody takes.
pub fn check(info: &FrameInfo) -> Checked<()> {
    check_layout(info, &[0; MAX_DIMS]).map(drop)
}

fn ensure(holds: bool, rule: &'static str) -> Checked<()> {
    if holds { Ok(()) } else { Err(InvalidHeader(rule)) }
}

struct Layout {
    ndims: usize,
    strides: [i32; MAX_DIMS],
    is_contiguous: bool,
}

/// Every element inside the payload, none over another, in the declared order. A stride of 0 means "as contiguous as can be".
fn check_layout(info: &FrameInfo, given: &[i32; MAX_DIMS]) -> Checked<Layout> {
    let element = element_bytes(info.dtype).ok_or(InvalidHeader("dtype"))?;
    ensure(matches!(info.major_order, major_order::ROW | major_order::COLUMN), "major order")?;
    let ndims = usize::from(info.ndims);
    let mut strides = [0; MAX_DIMS];
    let (mut span, mut packed, mut last, mut is_empty) = (element, element, element, false);
    let mut is_contiguous = true;
    for step in 0..ndims {
        // from the fastest dimension to the slowest
        let dimension = if info.major_order == major_order::ROW { ndims - 1 - step } else { step };
        ensure(info.dims[dimension] >= 0, "negative dimension")?;
        ensure(given[dimension] >= 0, "negative stride")?;
        let (dim, stride) = (info.dims[dimension] as u64, given[dimension] as u64);
        let stride = if stride == 0 { span } else { stride };
        ensure(stride >= span, "overlapping strides")?;
        is_contiguous &= stride == packed;
        is_empty |= dim == 0;
        let dim = dim.max(1);
        last = (dim - 1).checked_mul(stride).and_then(|bytes| bytes.checked_add(last)).ok_or(InvalidHeader("extent"))?;
        packed = packed.checked_mul(dim).ok_or(InvalidHeader("extent"))?;
        span = stride.checked_mul(dim).ok_or(InvalidHeader("extent"))?;
        strides[dimension] = i32::try_from(stride).map_err(|_| InvalidHeader("extent"))?;
    }
    let extent = if is_empty { 0 } else { last };
    // an empty payload has nothing to lay out (wire 8.2)
    ensure(info.values_len_bytes == 0 || extent <= u64::from(info.values_len_bytes), "payload shorter than its shape")?;
    Ok(Layout { ndims, strides, is_contiguous: is_contiguous || is_empty })
}

fn check_progress(unit: u8, stride: u32, layout: &Layout) -> Checked<()> {
    let dimension = match unit {
        progress_unit::NONE => return Ok(()),
        progress_unit::ROWS => 0,
        progress_unit::COLUMNS => 1,
        _ => return Err(InvalidHeader("progress unit")),
    };
    ensure(dimension < layout.ndims, "progress unit")?;
    ensure(stride != 0 && i64::from(stride) == i64::from(layout.strides[dimension]), "progress stride")
}

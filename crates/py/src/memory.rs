//! The memory of tensors: addresses that frameworks give, and buffers made from them.
//!
//! The caller keeps the memory at an address alive and unchanged until the call is done. That
//! is the one promise that cannot be checked here; everything else is.
#![allow(unsafe_code)]

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use thinwire_rows::Source;
use thinwire_sync::{ExternalBuffer, Gradient};
use thinwire_wire::DType;

use crate::error::Failure;

/// Some bytes of a framework's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
}

impl Memory {
    /// The `bytes` bytes at `address`, on this machine's main memory.
    pub(crate) fn new(address: usize, bytes: usize) -> Result<Memory, Failure> {
        if address == 0 && bytes > 0 {
            return Err(Failure::invalid(format!("address 0 for {bytes} bytes, expected memory")));
        }
        if bytes > isize::MAX as usize {
            let most = isize::MAX;
            return Err(Failure::invalid(format!(
                "{bytes} bytes or more, expected at most {most}"
            )));
        }
        Ok(Memory { address, bytes })
    }

    /// `elements` of `dtype` at `address`.
    pub(crate) fn of(address: usize, elements: usize, dtype: DType) -> Result<Memory, Failure> {
        if !address.is_multiple_of(dtype.size()) {
            return Err(Failure::invalid(format!(
                "{dtype} at address {address:#x}, expected a multiple of {}",
                dtype.size()
            )));
        }
        Memory::new(address, elements.saturating_mul(dtype.size()))
    }

    /// `count` numbers of rows at `address`.
    pub(crate) fn rows(address: usize, count: usize) -> Result<Memory, Failure> {
        if !address.is_multiple_of(size_of::<u64>()) {
            return Err(Failure::invalid(format!(
                "i64 at address {address:#x}, expected a multiple of {}",
                size_of::<u64>()
            )));
        }
        Memory::new(address, count.saturating_mul(size_of::<u64>()))
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the part goes beyond the end.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Memory {
        assert!(start + bytes <= self.bytes, "a part beyond the end");
        Memory { address: self.address + start, bytes }
    }

    /// Bytes of the buffer, to read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.view()
    }

    /// Bytes of the buffer, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.view_mut()
    }

    /// Copies `source` into it, unless they are the same.
    pub(crate) fn copy_from(&mut self, source: Memory) {
        if source.address != self.address {
            self.bytes_mut().copy_from_slice(source.bytes());
        }
    }

    /// Elements as a gradient.
    pub(crate) fn gradient(&self, dtype: DType) -> Gradient<'_> {
        match dtype {
            DType::F32 => Gradient::F32(self.view()),
            DType::F16 => Gradient::F16(self.view()),
            DType::BF16 => Gradient::BF16(self.view()),
        }
    }

    /// Elements, which are f32.
    pub(crate) fn f32s(&self) -> &[f32] {
        self.view()
    }

    /// Elements, which are f32, to write.
    pub(crate) fn f32s_mut(&mut self) -> &mut [f32] {
        self.view_mut()
    }

    /// Numbers of rows; one below zero is beyond every table.
    pub(crate) fn numbers(&self) -> &[u64] {
        self.view()
    }

    /// Numbers of rows, to write.
    pub(crate) fn numbers_mut(&mut self) -> &mut [u64] {
        self.view_mut()
    }

    /// Elements as f32.
    pub(crate) fn to_f32(self, dtype: DType) -> Vec<f32> {
        match dtype {
            DType::F32 => self.view::<f32>().to_vec(),
            DType::F16 => self.view::<f16>().to_f32_vec(),
            DType::BF16 => self.view::<bf16>().to_f32_vec(),
        }
    }

    /// Writes `values` as `dtype`, unless they are there already.
    pub(crate) fn write(&mut self, dtype: DType, values: &[f32]) {
        match dtype {
            DType::F32 if values.as_ptr().addr() == self.address => {}
            DType::F32 => self.view_mut::<f32>().copy_from_slice(values),
            DType::F16 => self.view_mut::<f16>().convert_from_f32_slice(values),
            DType::BF16 => self.view_mut::<bf16>().convert_from_f32_slice(values),
        }
    }

    /// Multiplies its f32 by `factor`.
    pub(crate) fn scale(&mut self, factor: f32) {
        self.view_mut::<f32>().iter_mut().for_each(|value| *value *= factor);
    }

    /// Writes NaN everywhere.
    pub(crate) fn spoil(&mut self, dtype: DType) {
        match dtype {
            DType::F32 => self.view_mut::<f32>().fill(f32::NAN),
            DType::F16 => self.view_mut::<f16>().fill(f16::NAN),
            DType::BF16 => self.view_mut::<bf16>().fill(bf16::NAN),
        }
    }

    fn view<T: Number>(&self) -> &[T] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the caller of the Python function gave an address of that many bytes and keeps
        // them alive until the call is done; alignment was checked in `of` or `rows`, or T is u8; every bit
        // pattern is a T.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.bytes / size_of::<T>()) }
    }

    fn view_mut<T: Number>(&mut self) -> &mut [T] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as above, and nobody else looks at the memory until the call is done.
        unsafe {
            std::slice::from_raw_parts_mut(self.address as *mut T, self.bytes / size_of::<T>())
        }
    }
}

impl ExternalBuffer for Memory {
    fn values(&self) -> &[f32] {
        self.view()
    }

    fn values_mut(&mut self) -> &mut [f32] {
        self.view_mut()
    }
}

/// Rows of equal width in a framework's memory, which its owner keeps alive and leaves alone as long as they
/// can be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    memory: Memory,
    width: usize,
}

impl Rows {
    /// Rows of `width` bytes each, at least 1.
    pub(crate) fn new(memory: Memory, width: usize) -> Rows {
        Rows { memory, width: width.max(1) }
    }
}

impl Source for Rows {
    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), thinwire_rows::Error> {
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            let found = self.in_memory(*row).ok_or_else(|| {
                let rows = self.memory.bytes().len() / self.width;
                let context = format!("row {row}, expected rows of 0..{rows}");
                thinwire_rows::Error::of_source(context, "no such row")
            })?;
            out.copy_from_slice(found);
        }
        Ok(())
    }

    fn in_memory(&self, row: u64) -> Option<&[u8]> {
        let start = (row as usize).checked_mul(self.width)?;
        self.memory.bytes().get(start..)?.get(..self.width)
    }
}

/// Types of which any bits are a value.
trait Number: Copy {}
impl Number for u8 {}
impl Number for u64 {}
impl Number for f32 {}
impl Number for f16 {}
impl Number for bf16 {}

/// The memory of a run: its own, or a framework's.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// f32 of its own.
    Values(Vec<f32>),
    /// Bytes of its own.
    Bytes(Vec<u8>),
    /// A framework's f32.
    BorrowedValues(Memory),
    /// A framework's bytes.
    BorrowedBytes(Memory),
}

impl thinwire_collective::Buffer for Buffer {
    fn dtype(&self) -> Option<DType> {
        match self {
            Buffer::Values(_) | Buffer::BorrowedValues(_) => Some(DType::F32),
            Buffer::Bytes(_) | Buffer::BorrowedBytes(_) => None,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Buffer::Values(values) => bytemuck::cast_slice(values),
            Buffer::Bytes(bytes) => bytes,
            Buffer::BorrowedValues(memory) | Buffer::BorrowedBytes(memory) => memory.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Values(values) => bytemuck::cast_slice_mut(values),
            Buffer::Bytes(bytes) => bytes,
            Buffer::BorrowedValues(memory) | Buffer::BorrowedBytes(memory) => memory.bytes_mut(),
        }
    }
}

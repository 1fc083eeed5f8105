//! Arrays in their own memory, or in a mapped file.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;

use crate::error::Error;
use crate::store::Map;

/// Numbers that never change.
#[derive(Clone)]
pub(crate) enum Array<T> {
    /// In their own memory.
    Owned(Vec<T>),
    /// Bytes of a mapped file.
    Mapped(Arc<Map>, Range<usize>),
}

impl<T: Pod> Array<T> {
    /// Borrows numbers from bytes `range` of a mapped file.
    ///
    /// # Panics
    /// If the range is outside the file, is not aligned, or is not a multiple of a number's size.
    pub fn mapped(map: &Arc<Map>, range: Range<usize>) -> Array<T> {
        let _: &[T] = bytemuck::cast_slice(&map[range.clone()]);
        Array::Mapped(map.clone(), range)
    }
}

impl<T> Array<T> {
    /// Checks that the mapped file was not changed.
    ///
    /// # Errors
    /// If the file was changed.
    pub fn ensure_unchanged(&self) -> Result<(), Error> {
        match self {
            Array::Owned(_) => Ok(()),
            Array::Mapped(map, _) => map.ensure_unchanged(),
        }
    }
}

impl<T: Pod> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Array::Owned(values) => values,
            Array::Mapped(map, range) => bytemuck::cast_slice(&map[range.clone()]),
        }
    }
}

impl<T: Pod + PartialEq> PartialEq for Array<T> {
    fn eq(&self, other: &Array<T>) -> bool {
        **self == **other
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

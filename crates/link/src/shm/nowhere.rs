//! The hand-over of descriptors on systems other than Linux, where there is none.

use std::io::{self, ErrorKind};

use crate::shm::Segment;

/// Bytes of an offer.
pub const OFFER_BYTES: usize = 32;

/// Shared memory; there is none on this system.
#[derive(Debug)]
pub enum Offer {}

/// A guest's connection to its host, which is never made on this system.
#[derive(Debug)]
pub enum Visit {}

impl Offer {
    /// # Errors
    /// Always.
    pub fn new(_length: usize) -> io::Result<Offer> {
        Err(ErrorKind::Unsupported.into())
    }

    pub fn to_bytes(&self) -> [u8; OFFER_BYTES] {
        match *self {}
    }

    pub fn hand_over(&self) -> bool {
        match *self {}
    }

    pub fn into_segment(self) -> Segment {
        match self {}
    }
}

impl Visit {
    /// # Errors
    /// Always.
    pub fn begin(_offer: &[u8; OFFER_BYTES]) -> io::Result<Visit> {
        Err(ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// Never.
    pub fn take(self) -> io::Result<Segment> {
        match self {}
    }
}

//! Rows of other processes: a service that returns the rows of one part, and the source of all rows.
//!
//! Rows `0..rows` are divided into parts, which are consecutive ranges. Each process has one part and offers
//! it as a [`RowService`] to processes that prove to have the job's token; a [`Remote`] source asks all parts
//! at once. The answer to a request is the requested rows, one after the other.
//!
//! Laws: every row equals the row of the part's own source. If a peer is lost or gives wrong answers, an
//! error of one line names it, or its part is read from a copy. No wait takes longer than the timeout.

mod peer;
mod service;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use thinwire_link::Token;
use thinwire_rows::{Error, Source};

pub use service::{RowService, SharedSource};

use crate::batch::lock;
use crate::stored::{check_room, check_rows};
use peer::Peer;

/// Location of a part.
#[derive(Clone)]
pub enum Part {
    /// In this process: its source, whose rows count from 0, and its number of rows.
    Here(SharedSource, u64),
    /// In another process, at the address `host:port` of its [`RowService`]. An optional source of the same
    /// rows, such as a file, is used if that process is lost.
    At(String, Option<SharedSource>),
}

/// Rows of all parts.
pub struct Remote {
    width: usize,
    /// First rows of the parts, and the number of all rows.
    starts: Vec<u64>,
    parts: Vec<Place>,
    fetched: AtomicU64,
}

enum Place {
    Here(SharedSource),
    Peer(Box<Mutex<Peer>>),
}

/// Rows of a read that one part has: their numbers in the part, and their bytes.
struct Share<'a> {
    rows: Vec<u64>,
    out: &'a mut [u8],
}

impl Remote {
    /// Connects to all parts, in order. `timeout` bounds this and every later wait for a peer.
    ///
    /// # Errors
    /// If a part cannot be reached, has another token or version, has rows of another width, or does not
    /// begin with the row after the previous part.
    pub fn connect(parts: Vec<Part>, token: &Token, timeout: Duration) -> Result<Remote, Error> {
        let mut remote =
            Remote { width: 0, starts: vec![0], parts: Vec::new(), fetched: AtomicU64::new(0) };
        for part in parts {
            let end = *remote.starts.last().expect("rows start at 0");
            let (place, width, first, rows) = match part {
                Part::Here(source, rows) => {
                    let width = source.width();
                    (Place::Here(source), width, end, rows)
                }
                Part::At(address, copy) => {
                    let part = remote.parts.len();
                    let (peer, about) = Peer::connect(part, &address, copy, token, timeout)?;
                    (Place::Peer(Box::new(Mutex::new(peer))), about.width, about.first, about.rows)
                }
            };
            remote.check(first, width)?;
            remote.width = width;
            remote.starts.push(end + rows);
            remote.parts.push(place);
        }
        if remote.parts.is_empty() {
            return Err(Error::of_source("no parts".to_owned(), "expected at least 1"));
        }
        Ok(remote)
    }

    /// Returns the number of rows of all parts.
    pub fn rows(&self) -> u64 {
        *self.starts.last().expect("rows start at 0")
    }

    /// Returns the number of rows that other processes have sent.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    fn check(&self, first: u64, width: usize) -> Result<(), Error> {
        let (part, end) = (self.parts.len(), self.rows());
        if first != end {
            let context = format!("part {part} begins with row {first}, expected {end}");
            return Err(Error::of_source(context, "check that all processes have the same parts"));
        }
        if part > 0 && width != self.width {
            let context = format!("part {part} has rows of {width} bytes, expected {}", self.width);
            return Err(Error::of_source(
                context,
                "check that all processes have the same features",
            ));
        }
        Ok(())
    }

    fn read_ascending(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        let shares = self.divide(rows, out)?;
        let mut outcome = Ok(());
        // All peers are asked before the first answer is awaited. Locks are taken in the order of the parts.
        let mut asked: Vec<(MutexGuard<'_, Peer>, Share<'_>)> = Vec::new();
        for (place, share) in self.parts.iter().zip(shares) {
            match place {
                Place::Here(source) => {
                    outcome = outcome.and(source.read(&share.rows, share.out));
                }
                Place::Peer(_) if share.rows.is_empty() => {}
                Place::Peer(peer) => {
                    let mut peer = lock(peer);
                    peer.ask(&share.rows);
                    self.fetched.fetch_add(share.rows.len() as u64, Ordering::Relaxed);
                    asked.push((peer, share));
                }
            }
        }
        // After an error too, what was asked is received, or the next read would find it.
        for (peer, share) in &mut asked {
            outcome = outcome.and(peer.read(&share.rows, share.out));
        }
        outcome
    }

    /// Divides a read of ascending rows into the shares of the parts.
    fn divide<'a>(&self, rows: &[u64], mut out: &'a mut [u8]) -> Result<Vec<Share<'a>>, Error> {
        check_rows(rows, self.rows())?;
        let mut left = rows;
        let mut shares = Vec::with_capacity(self.parts.len());
        for bounds in self.starts.windows(2) {
            let count = left.partition_point(|row| *row < bounds[1]);
            let (mine, others) = left.split_at(count);
            let (bytes, rest) = std::mem::take(&mut out).split_at_mut(count * self.width);
            shares
                .push(Share { rows: mine.iter().map(|row| row - bounds[0]).collect(), out: bytes });
            (left, out) = (others, rest);
        }
        Ok(shares)
    }
}

impl Source for Remote {
    fn width(&self) -> usize {
        self.width
    }

    fn read(&self, rows: &[u64], out: &mut [u8]) -> Result<(), Error> {
        check_room(rows, out, self.width)?;
        if rows.is_sorted() {
            return self.read_ascending(rows, out);
        }
        let mut places: Vec<usize> = (0..rows.len()).collect();
        places.sort_unstable_by_key(|place| rows[*place]);
        let ascending: Vec<u64> = places.iter().map(|place| rows[*place]).collect();
        let mut values = vec![0; out.len()];
        self.read_ascending(&ascending, &mut values)?;
        for (place, row) in places.iter().zip(values.chunks_exact(self.width)) {
            out[place * self.width..][..self.width].copy_from_slice(row);
        }
        Ok(())
    }

    fn own(&self, row: u64) -> Option<&[u8]> {
        let part = self.starts.partition_point(|start| *start <= row).checked_sub(1)?;
        match self.parts.get(part)? {
            Place::Here(source) => source.in_memory(row - self.starts[part]),
            Place::Peer(_) => None,
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("starts", &self.starts).finish_non_exhaustive()
    }
}

//! Throughput of one plain TCP stream between ranks 0 and 1, to which links are compared.
//!
//! The stream uses only the standard library, with blocking calls and large pieces, as any simple program
//! does. Rank 0 listens and writes its address into the job's store. Then the two ranks take turns.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, ensure};
use thinwire_link::store::Store;
use thinwire_report::figures::median;

const PIECE_BYTES: usize = 1 << 20;
const PIECES_MAX: usize = 1024;
const RUN: Duration = Duration::from_millis(400);
const RUNS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A plain connection between ranks 0 and 1.
pub struct Plain {
    stream: TcpStream,
    first: bool,
}

/// Throughput of the stream, in bytes per second each way.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// From rank 0 to rank 1.
    pub one_way: f64,
    /// Both ways at once.
    pub both_ways: f64,
}

/// Directions in which messages are sent.
#[derive(Clone, Copy, PartialEq)]
pub enum Ways {
    /// From the first rank to the second.
    One,
    /// Both at once.
    Both,
}

impl Plain {
    /// Connects ranks 0 and 1, and returns `None` on other ranks. `host` is the address at which other ranks
    /// reach this rank.
    ///
    /// # Errors
    /// If one of the two ranks does not find the other.
    pub fn connect(rank: u32, host: IpAddr, store: &dyn Store) -> Result<Option<Plain>> {
        Plain::between(0, 1, rank, host, store)
    }

    /// Connects a pair of ranks, once. Returns `None` on other ranks.
    ///
    /// # Errors
    /// If one of the two ranks does not find the other.
    pub fn between(
        first: u32,
        second: u32,
        rank: u32,
        host: IpAddr,
        store: &dyn Store,
    ) -> Result<Option<Plain>> {
        let key = format!("bench/plain/{first}/{second}");
        let stream = if rank == first {
            accept(host, store, &key).with_context(|| format!("waiting for rank {second}"))?
        } else if rank == second {
            let address = store.get(&key, TIMEOUT)?;
            let address: SocketAddr = String::from_utf8_lossy(&address).parse()?;
            TcpStream::connect_timeout(&address, TIMEOUT)
                .with_context(|| format!("connecting to rank {first}"))?
        } else {
            return Ok(None);
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Some(Plain { stream, first: rank == first }))
    }

    /// Measures both patterns. Both ranks call this function and get the same rates.
    ///
    /// # Errors
    /// If the other rank has ended.
    pub fn rates(&mut self) -> Result<Rates> {
        let pieces = self.pieces()?;
        Ok(Rates {
            one_way: self.rate(pieces, Ways::One)?,
            both_ways: self.rate(pieces, Ways::Both)?,
        })
    }

    /// Measures only the second pattern.
    ///
    /// # Errors
    /// If the other rank has ended.
    pub fn both_ways(&mut self) -> Result<f64> {
        let pieces = self.pieces()?;
        self.rate(pieces, Ways::Both)
    }

    /// Returns the number of pieces that take long enough for a measurement.
    fn pieces(&mut self) -> Result<usize> {
        let mut pieces = 2;
        loop {
            let seconds = self.exchange(pieces, Ways::One)?;
            let more = self.more(pieces, seconds, PIECES_MAX)?;
            if more == pieces {
                return Ok(pieces);
            }
            pieces = more;
        }
    }

    /// Returns the next number of messages, given that `count` messages took `seconds`: three times as many,
    /// up to `count_max`, until they take long enough. Both ranks get the same number.
    ///
    /// # Errors
    /// If the other rank has ended.
    pub fn more(&mut self, count: usize, seconds: f64, count_max: usize) -> Result<usize> {
        let more = if seconds < RUN.as_secs_f64() / 3.0 { 3 * count } else { count };
        Ok(self.agree(more.min(count_max) as u64)? as usize)
    }

    fn rate(&mut self, pieces: usize, ways: Ways) -> Result<f64> {
        let seconds: Result<Vec<f64>> = (0..RUNS).map(|_| self.exchange(pieces, ways)).collect();
        Ok((pieces * PIECE_BYTES) as f64 / median(&mut seconds?))
    }

    /// Returns half the seconds that a message of `bytes` takes to the other rank and back.
    ///
    /// # Errors
    /// If the other rank has ended.
    pub fn half_round_trip_s(&mut self, bytes: usize) -> Result<f64> {
        let mut message = vec![0; bytes];
        let mut seconds = Vec::new();
        for _ in 0..pings(bytes) {
            seconds.push(timed(|| -> Result<()> {
                if self.first {
                    there(self.stream.write_all(&message))?;
                    there(self.stream.read_exact(&mut message))?;
                } else {
                    there(self.stream.read_exact(&mut message))?;
                    there(self.stream.write_all(&message))?;
                }
                Ok(())
            })?);
        }
        Ok(median(&mut seconds) / 2.0)
    }

    /// Returns rank 0's number on both ranks. The call is also a barrier.
    ///
    /// # Errors
    /// If the other rank has ended.
    pub fn agree(&mut self, number: u64) -> Result<u64> {
        let mut bytes = number.to_le_bytes();
        if self.first {
            there(self.stream.write_all(&bytes))?;
            there(self.stream.read_exact(&mut [0]))?;
        } else {
            there(self.stream.read_exact(&mut bytes))?;
            there(self.stream.write_all(&[0]))?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns the seconds until both sides have received everything.
    fn exchange(&mut self, count: usize, ways: Ways) -> Result<f64> {
        self.agree(0)?;
        let goes = |alone: bool| if alone || ways == Ways::Both { count } else { 0 };
        let [out, into] = [self.first, !self.first].map(goes);
        let begun = Instant::now();
        let (mut output, mut input) = (self.stream.try_clone()?, self.stream.try_clone()?);
        std::thread::scope(|scope| -> Result<()> {
            let sender = scope.spawn(move || pieces(out, |piece| output.write_all(piece)));
            pieces(into, |piece| input.read_exact(piece))?;
            sender.join().expect("sending does not panic")
        })?;
        self.agree(0)?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Returns the number of round trips for a message of `bytes`.
pub fn pings(bytes: usize) -> usize {
    ((64 << 20) / bytes.max(1)).clamp(5, 200)
}

fn accept(host: IpAddr, store: &dyn Store, key: &str) -> Result<TcpStream> {
    let listener = TcpListener::bind((host, 0)).context("listening for a plain stream")?;
    store.set(key, listener.local_addr()?.to_string().as_bytes())?;
    listener.set_nonblocking(true)?;
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ensure!(begun.elapsed() < TIMEOUT, "it did not connect within {TIMEOUT:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the result with a clearer error: the other rank was silent for too long, or is gone.
fn there(result: std::io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => anyhow!("the other rank was silent for {TIMEOUT:?}"),
        _ => Error::new(error).context("the other rank is gone"),
    })
}

/// Calls `once` for each of `count` pieces, one after the other.
fn pieces(count: usize, mut once: impl FnMut(&mut [u8]) -> std::io::Result<()>) -> Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    (0..count).try_for_each(|_| there(once(&mut piece)))
}

/// Returns the number of repetitions of work that takes `seconds`: as many as fit in `budget`, at least 3 and
/// at most 50.
pub fn repetitions(seconds: f64, budget: Duration) -> usize {
    ((budget.as_secs_f64() / seconds.max(1e-9)) as usize).clamp(3, 50)
}

/// Returns the seconds that `work` took.
///
/// # Errors
/// Errors returned by `work`.
pub fn timed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

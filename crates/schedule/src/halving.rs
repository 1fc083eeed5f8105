//! The all-reduce by recursive halving and doubling, for any number of ranks.
//!
//! Partners at distance p/2, p/4, ... 1 halve between them the chunks that both still sum: each gives
//! away one half and merges the other. Then every rank has the sum of its own chunk, encodes it once,
//! and the same partners in reverse order exchange all encoded chunks that they have.
//! (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", section 4.5.)
//!
//! p is the largest power of two among n ranks. Each of the n - p ranks beyond, a guest, hands its
//! values to a host at the start and receives the encoded sums from it at the end.
//!
//! Per rank: log2 p rounds each way, 2(p-1)/p of the encoded bytes sent and received; with guests, one
//! more round each way and twice the encoded bytes.

use std::ops::Range;

use thinwire_wire::{Rank, World};

use crate::builder::{Builder, Filled, Phase, Span};
use crate::{Schedule, Shape};

/// Sums by halving, then doubling.
pub(crate) fn all_reduce(world: World, shape: &Shape) -> Schedule {
    let mut builder = Builder::default();
    let hosts = 1 << world.size().ilog2();
    for partition in 0..shape.partitions {
        let span = |chunks| Span::new(shape, partition, hosts, chunks);
        if let Some(whole) = span(0..hosts) {
            let chunks: Vec<_> = (0..hosts).map(|chunk| span(chunk..chunk + 1)).collect();
            if world.rank().index() < hosts {
                host(&mut builder, world, &whole, &chunks, span);
            } else {
                guest(&mut builder, world.before(hosts), &whole, &chunks);
            }
        }
    }
    builder.finish()
}

type Chunks = [Option<Span>];

fn guest(builder: &mut Builder, host: Rank, whole: &Span, chunks: &Chunks) {
    let encoded = builder.encode(whole, None);
    let sent = builder.send(encoded, whole, Phase::Reduce, host);
    for span in chunks.iter().flatten() {
        let sum = builder.recv(span, Phase::Gather, host);
        builder.decode(sum, span, Some(sent));
    }
}

/// The chunks that were given away in one round of halving.
struct Given {
    partner: Rank,
    chunks: Range<usize>,
    sent: Option<u32>,
}

fn host(
    builder: &mut Builder,
    world: World,
    whole: &Span,
    chunks: &Chunks,
    span: impl Fn(Range<usize>) -> Option<Span>,
) {
    let (me, hosts) = (world.rank().index(), chunks.len());
    let guest = (me + hosts < world.size()).then(|| world.after(hosts));
    let mut merged = guest.map(|guest| {
        let values = builder.recv(whole, Phase::Reduce, guest);
        builder.merge(values, whole, None)
    });
    let (mut mine, mut rounds) = (0..hosts, Vec::new());
    while mine.len() > 1 {
        let (keep, give) = halve(mine, me);
        let partner = Rank((me ^ keep.len()) as u32);
        let sent = span(give.clone()).map(|span| {
            let encoded = builder.encode(&span, merged);
            builder.send(encoded, &span, Phase::Reduce, partner)
        });
        if let Some(span) = span(keep.clone()) {
            let part = builder.recv(&span, Phase::Reduce, partner);
            merged = Some(builder.merge(part, &span, merged));
        }
        rounds.push(Given { partner, chunks: give, sent });
        mine = keep;
    }
    let sums = double(builder, me, merged, rounds, chunks);
    for (sum, span) in sums {
        guest.map(|guest| builder.send(sum, span, Phase::Gather, guest));
    }
}

/// Returns the half of `chunks` that contains chunk `me`, and the other half.
fn halve(chunks: Range<usize>, me: usize) -> (Range<usize>, Range<usize>) {
    let middle = chunks.start + chunks.len() / 2;
    let (lower, upper) = (chunks.start..middle, middle..chunks.end);
    if me < middle { (lower, upper) } else { (upper, lower) }
}

/// Encodes this rank's sum and exchanges all sums with the partners of halving in reverse.
fn double<'a>(
    builder: &mut Builder,
    me: usize,
    merged: Option<u32>,
    rounds: Vec<Given>,
    chunks: &'a Chunks,
) -> Vec<(Filled, &'a Span)> {
    let mut held = Vec::new();
    if let Some(span) = &chunks[me] {
        let encoded = builder.encode(span, merged);
        builder.decode(encoded, span, None);
        held.push((encoded, span));
    }
    for round in rounds.into_iter().rev() {
        for (sum, span) in &held {
            builder.send(*sum, span, Phase::Gather, round.partner);
        }
        for span in chunks[round.chunks].iter().flatten() {
            let sum = builder.recv(span, Phase::Gather, round.partner);
            builder.decode(sum, span, round.sent);
            held.push((sum, span));
        }
    }
    held
}

//! `thinwire bench link`: what our link carries between two ranks, beside a plain TCP stream.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use thinwire_link::tcp::Encryption;
use thinwire_link::{Error, Link, Place, Port};
use thinwire_report::figures::{bytes_per_s, median, ratio, seconds};
use thinwire_wire::{Header, Kind, Rank, Tag};

use super::plain::{self, Plain, Rates, Ways, timed};
use crate::link::Settings;
use crate::output::{Format, print_lines, say};
use crate::place::Flags;
use crate::ranks::{self, Start};
use crate::units;

const RUNS: usize = 3;
const MESSAGES_MAX: usize = 1 << 14;
const QUEUE_BYTES: usize = 64 << 20;

/// A link between two ranks, compared with a plain TCP stream.
#[derive(clap::Args)]
pub struct Args {
    /// Sizes of messages
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB", value_parser = units::bytes(0..=usize::MAX))]
    sizes: Vec<usize>,
    #[command(flatten)]
    link: Settings,
    #[command(flatten)]
    place: Flags,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    encrypted: bool,
    message_bytes: usize,
    half_round_trip_s: f64,
    plain_half_round_trip_s: f64,
    one_way_bytes_per_s: f64,
    plain_one_way_bytes_per_s: f64,
    both_ways_bytes_per_s: f64,
    plain_both_ways_bytes_per_s: f64,
}

/// Measures, in two ranks; rank 0 prints.
///
/// # Errors
/// If the ranks lose each other.
pub fn run(args: &Args) -> Result<u8> {
    let place = match ranks::start(&args.place, Some(2), 2)? {
        Start::Rank(place) => place,
        Start::Done(code) => return Ok(code),
    };
    ensure!(
        args.sizes.iter().all(|size| (1..=1 << 30).contains(size)),
        "sizes are 1 byte to 1 GiB"
    );
    let mut meeting = args.link.meet(&place, &args.place, args.link.limit())?;
    let mut plain = match meeting.store() {
        Some((store, host)) => Plain::connect(place.rank, host, store)?,
        None => None,
    };
    let Some(plain) = &mut plain else { bail!("a link needs two ranks") };
    if place.rank == 0 {
        say(format!("link: {}", args.link.describe(args.link.limit(), &place)));
    }
    let rates = plain.rates()?;
    let mut lines = Vec::new();
    for encryption in [Encryption::Never, Encryption::Always] {
        meeting.bare(encryption);
        let mut ends = Ends { link: meeting.link()?, plain, rates, timeout: args.link.timeout };
        for size in &args.sizes {
            lines.push(ends.measure(*size, encryption)?);
        }
        ends.plain.agree(0)?;
        ends.link.finish(args.link.timeout)?;
    }
    if place.rank == 0 { show(&lines, args.json.into()) } else { Ok(0) }
}

fn show(lines: &[Line], format: Format) -> Result<u8> {
    let header = [
        "message",
        "encrypted",
        "½ round trip",
        "plain",
        "one way",
        "plain",
        "ratio",
        "both ways",
        "plain",
        "ratio",
    ];
    print_lines(lines, format, header, |line| {
        [
            thinwire_report::figures::bytes(line.message_bytes as f64),
            if line.encrypted { "yes" } else { "no" }.to_owned(),
            seconds(line.half_round_trip_s),
            seconds(line.plain_half_round_trip_s),
            bytes_per_s(line.one_way_bytes_per_s),
            bytes_per_s(line.plain_one_way_bytes_per_s),
            ratio(line.one_way_bytes_per_s / line.plain_one_way_bytes_per_s),
            bytes_per_s(line.both_ways_bytes_per_s),
            bytes_per_s(line.plain_both_ways_bytes_per_s),
            ratio(line.both_ways_bytes_per_s / line.plain_both_ways_bytes_per_s),
        ]
    })?;
    Ok(0)
}

/// This rank's ends of both connections.
struct Ends<'a> {
    link: Link,
    plain: &'a mut Plain,
    rates: Rates,
    timeout: Duration,
}

impl Ends<'_> {
    fn measure(&mut self, size: usize, encryption: Encryption) -> Result<Line> {
        let mut traffic =
            Traffic { outgoing: vec![1; size], incoming: vec![0; size], ..Traffic::default() };
        let half_round_trip_s = self.ping(&mut traffic)?;
        let mut rate = |ends: &mut Self, ways| -> Result<f64> {
            let mut count = (1 << 20 >> size.ilog2().min(20)).max(2);
            loop {
                let seconds = ends.stream(&mut traffic, count, ways)?;
                let room = MESSAGES_MAX.min(QUEUE_BYTES / size).max(count);
                let more = ends.plain.more(count, seconds, room)?;
                if more == count {
                    break;
                }
                count = more;
            }
            let runs: Result<Vec<f64>> =
                (0..RUNS).map(|_| ends.stream(&mut traffic, count, ways)).collect();
            Ok((count * size) as f64 / median(&mut runs?))
        };
        Ok(Line {
            encrypted: encryption == Encryption::Always,
            message_bytes: size,
            half_round_trip_s,
            one_way_bytes_per_s: rate(self, Ways::One)?,
            both_ways_bytes_per_s: rate(self, Ways::Both)?,
            plain_half_round_trip_s: self.plain.half_round_trip_s(size)?,
            plain_one_way_bytes_per_s: self.rates.one_way,
            plain_both_ways_bytes_per_s: self.rates.both_ways,
        })
    }

    fn is_first(&self) -> bool {
        self.link.world().rank() == Rank(0)
    }

    fn ping(&mut self, traffic: &mut Traffic) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..plain::pings(traffic.outgoing.len()) {
            times.push(timed(|| -> Result<()> {
                if self.is_first() {
                    self.send(traffic, 1);
                }
                self.until(traffic, |traffic| traffic.arrived == 1)?;
                if !self.is_first() {
                    self.send(traffic, 1);
                }
                self.until(traffic, |traffic| traffic.left == 1)?;
                (traffic.arrived, traffic.left) = (0, 0);
                Ok(())
            })?);
        }
        Ok(median(&mut times) / 2.0)
    }

    /// The seconds until both sides have everything.
    fn stream(&mut self, traffic: &mut Traffic, count: usize, ways: Ways) -> Result<f64> {
        self.plain.agree(0)?;
        let begun = Instant::now();
        let goes = |alone: bool| if alone || ways == Ways::Both { count } else { 0 };
        let [out, into] = [self.is_first(), !self.is_first()].map(goes);
        self.send(traffic, out);
        self.until(traffic, |traffic| traffic.left == out && traffic.arrived == into)?;
        (traffic.arrived, traffic.left) = (0, 0);
        self.plain.agree(0)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    fn send(&mut self, traffic: &mut Traffic, count: usize) {
        let peer = self.link.world().after(1);
        for _ in 0..count {
            traffic.number += 1;
            let tag = Tag { step: traffic.number, tensor: 0, message: 0 };
            self.link.send(peer, Header::new(Kind::Data, 0, tag, traffic.outgoing.len()));
        }
    }

    fn until(&mut self, traffic: &mut Traffic, done: impl Fn(&Traffic) -> bool) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        while !done(traffic) {
            if !self.link.progress(traffic)? {
                ensure!(Instant::now() < deadline, "nothing came for {:?}", self.timeout);
                self.link.wait(Duration::from_millis(100))?;
            }
        }
        Ok(())
    }
}

/// Messages that all hold the same, and are not kept.
#[derive(Default)]
struct Traffic {
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    number: u64,
    left: usize,
    arrived: usize,
}

impl Port for Traffic {
    fn outgoing(&self, _to: Rank, _tag: &Tag) -> &[u8] {
        &self.outgoing
    }

    fn sent(&mut self, _to: Rank, _tag: &Tag) {
        self.left += 1;
    }

    fn incoming(&mut self, _from: Rank, header: &Header) -> Result<Place<'_>, Error> {
        match self.incoming.get_mut(..header.length as usize) {
            Some(place) => Ok(Place::Here(place)),
            None => Ok(Place::Defer),
        }
    }

    fn received(&mut self, _from: Rank, _header: &Header) -> Result<(), Error> {
        self.arrived += 1;
        Ok(())
    }
}

//! Measurement of the links' speed and of a rank's own time for moving bytes. It uses the executor's
//! exchanges: alone, between pieces of work, and during work.

use std::time::Instant;

use anyhow::Result;
use thinwire_train::spmd::{Chore, Probe};

/// Shortest time in seconds of an exchange that measures the bandwidth.
const PROBE_S: f64 = 0.2;
/// Number of tensors in transit at the same time.
const TENSORS: usize = 16;
/// Largest number of elements of a tensor.
const ELEMENTS_MAX: usize = 1 << 20;
/// Number of short messages in transit at the same time.
const SHORT: usize = 64;
/// Number of elements of a short message.
const FEW: usize = 16;
/// Number of long exchanges in a row. More than one is needed because the first may use a link that was idle.
const IN_TURN: usize = 6;
/// Ratio of the sizes of the longer and the shorter exchange.
const LONGER: usize = 4;
/// Seconds of work between two short exchanges.
const PIECE_S: f64 = 4e-3;
/// Typical number of elements of a tensor, seconds of work between two sums of it, and number of
/// alternations.
const USUAL: usize = 1 << 15;
const USUAL_PIECE_S: f64 = 16e-3;
const USUAL_TURNS: usize = 6;
/// Number of timings in a round.
const ROUNDS: usize = 5;
/// Number of alternations of work and short exchanges in a round.
const TURNS: usize = 12;
/// Number of rounds of alternations, each paired with the same work alone, because the speed of a machine may
/// change over time.
const PAIRS: usize = 9;

/// Figures of a rank's links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Seconds of the shortest exchange, between ranks that are computing.
    pub latency_s: f64,
    /// Bytes per second that a rank sends while all ranks send.
    pub bytes_per_s: f64,
    /// Seconds that a rank itself spends on sending a byte and receiving another one.
    pub byte_s: f64,
    /// Seconds that a rank itself spends on a message.
    pub message_s: f64,
    /// Seconds by which an exchange that a rank waits for takes longer than its transfer.
    pub exchange_s: f64,
}

impl Links {
    /// Measures the figures of the links. All ranks measure at the same time.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn measure(probe: &mut Probe, ranks: usize) -> Result<Links> {
        let mut test = Test { probe, chore: Chore::new(), messages: 2.0 * (ranks as f64 - 1.0) };
        let chore_s = test.chore_s()?;
        let latency_s = test.latency_s(chore_s)?;
        let (elements, bulk_s) = test.bulk()?;
        let bytes = TENSORS as f64 * test.bytes(elements);
        let beside_s = test.beside_s(TENSORS, elements, 1.5 * bulk_s, chore_s)?;
        let byte_s = (beside_s / bytes).clamp(0.0, bulk_s / bytes);
        let short_s = test.beside_s(SHORT, FEW, PROBE_S / 2.0, chore_s)?;
        let short_s = short_s - SHORT as f64 * test.bytes(FEW) * byte_s;
        let bytes_per_s = test.bytes_per_s(elements)?;
        let usual_s = test.added_s(USUAL, USUAL_PIECE_S / chore_s, USUAL_TURNS)?;
        let travels_s = 2.0 * latency_s + test.bytes(USUAL) * byte_s.max(1.0 / bytes_per_s);
        Ok(Links {
            latency_s,
            bytes_per_s,
            byte_s,
            message_s: (short_s / (SHORT as f64 * test.messages)).max(0.0),
            exchange_s: (usual_s - travels_s).max(0.0),
        })
    }
}

struct Test<'a> {
    probe: &'a mut Probe,
    chore: Chore,
    /// Number of messages that a rank sends in one exchange.
    messages: f64,
}

impl Test<'_> {
    /// Returns the bytes that a rank sends to sum a tensor.
    fn bytes(&self, elements: usize) -> f64 {
        let ranks = self.messages / 2.0 + 1.0;
        self.messages * (4.0 * elements as f64 / ranks + thinwire_wire::HEADER_BYTES as f64)
    }

    /// Returns the seconds of some work on the slowest rank.
    fn timed(&mut self, work: impl Fn(&mut Test<'_>) -> Result<()>) -> Result<f64> {
        let samples = (0..ROUNDS).map(|_| self.once_s(&work));
        let mut samples = samples.collect::<Result<Vec<f64>>>()?;
        self.most(thinwire_report::figures::median(&mut samples))
    }

    /// Returns the seconds of some work, done once, on the slowest rank.
    fn slowest_s(&mut self, work: impl Fn(&mut Test<'_>) -> Result<()>) -> Result<f64> {
        let seconds = self.once_s(&work)?;
        self.most(seconds)
    }

    /// Returns the seconds on this rank of some work that all ranks begin together.
    fn once_s(&mut self, work: &impl Fn(&mut Test<'_>) -> Result<()>) -> Result<f64> {
        self.probe.gather(&[0.0])?;
        let started = Instant::now();
        work(self)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Returns the largest of all ranks' figures.
    fn most(&mut self, mine: f64) -> Result<f64> {
        let all = self.probe.gather(&[mine as f32])?;
        Ok(f64::from(all.into_iter().fold(0.0, f32::max)))
    }

    fn work(&self, times: usize) -> Result<()> {
        (0..times).for_each(|_| self.chore.run());
        Ok(())
    }

    fn exchange(&mut self, tensors: usize, elements: usize) -> Result<()> {
        let begun = self.probe.begin(tensors, elements);
        Ok(self.probe.finish(&begun)?)
    }

    /// Returns the seconds of one chore.
    fn chore_s(&mut self) -> Result<f64> {
        let mut times = 1;
        loop {
            let seconds = self.timed(|test| test.work(times))?;
            if seconds > PROBE_S / 2.0 {
                return Ok(seconds / times as f64);
            }
            times *= 2;
        }
    }

    /// Returns the seconds per step that a short exchange adds to the work before it.
    fn latency_s(&mut self, chore_s: f64) -> Result<f64> {
        let bare_s = self.timed(|test| test.exchange(1, 1))?;
        let added_s = self.added_s(1, PIECE_S / chore_s, TURNS)?;
        Ok(added_s.max(bare_s) / 2.0)
    }

    /// Returns the seconds that an exchange of one tensor adds to the work before it, when exchanges and work
    /// alternate.
    fn added_s(&mut self, elements: usize, chores: f64, turns: usize) -> Result<f64> {
        let times = chores.ceil().max(1.0) as usize;
        let mut added = Vec::new();
        for _ in 0..PAIRS {
            let alone_s = self.slowest_s(|test| test.work(turns * times))?;
            let turns_s = self.slowest_s(|test| {
                (0..turns).try_for_each(|_| {
                    test.work(times)?;
                    test.exchange(1, elements)
                })
            })?;
            added.push((turns_s - alone_s) / turns as f64);
        }
        Ok(thinwire_report::figures::median(&mut added))
    }

    /// Returns the size of tensors whose exchange takes long enough, and the seconds of the exchange.
    fn bulk(&mut self) -> Result<(usize, f64)> {
        let mut elements = 1 << 9;
        loop {
            let seconds = self.timed(|test| test.exchange(TENSORS, elements))?;
            if seconds > PROBE_S || elements == ELEMENTS_MAX {
                return Ok((elements, seconds));
            }
            elements *= 2;
        }
    }

    /// Returns the additional bytes of a longer exchange, divided by its additional seconds. The result
    /// includes neither the fixed time of an exchange nor the first burst of an idle link.
    fn bytes_per_s(&mut self, elements: usize) -> Result<f64> {
        let longer = LONGER * elements;
        let (short_s, long_s) = (self.one_s(elements)?, self.one_s(longer)?);
        let more_s = (long_s - short_s).max(long_s / 2.0);
        Ok((self.bytes(longer) - self.bytes(elements)) / more_s)
    }

    /// Returns the seconds of one exchange if each exchange begins after the previous one.
    fn one_s(&mut self, elements: usize) -> Result<f64> {
        let all = self.timed(|test| (0..IN_TURN).try_for_each(|_| test.exchange(1, elements)))?;
        Ok(all / IN_TURN as f64)
    }

    /// Returns the seconds that an exchange adds to work of `work_s` seconds done at the same time.
    fn beside_s(
        &mut self,
        tensors: usize,
        elements: usize,
        work_s: f64,
        chore_s: f64,
    ) -> Result<f64> {
        let times = (work_s / chore_s).ceil().max(1.0) as usize;
        let mut added = Vec::new();
        for _ in 0..ROUNDS {
            let alone_s = self.once_s(&|test: &mut Test<'_>| test.work(times))?;
            self.probe.gather(&[0.0])?;
            let started = Instant::now();
            let begun = self.probe.begin(tensors, elements);
            self.work(times)?;
            added.push(started.elapsed().as_secs_f64() - alone_s);
            self.probe.finish(&begun)?;
        }
        let median = thinwire_report::figures::median(&mut added);
        let all = self.probe.gather(&[median as f32])?;
        Ok(f64::from(all.iter().sum::<f32>()) / all.len() as f64)
    }
}

//! The averager: carries out the rounds of a mode over the parameters of one rank.

mod reform;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::fragment::{Among, Fragment, Stage, cut, described, rows};
use super::mode::Mode;
use super::pairs::{Pairs, mean};
use super::replica::{Replica, RoundRecord, checksum};
use super::timetable::{Action, Timetable};
use crate::agreement::check_names;
use crate::channel::Channel;
use crate::{
    Error, Feedback, Options, Outcome, Parameter, Policy, Reduction, Synchronizer, Tensors,
};

/// The state of an [`Averager`] on one rank, from which a restart continues. The rank's own parameters
/// are not in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AveragerState {
    /// Named f32 tensors: common parameters, the outer optimiser's state, residuals.
    pub tensors: Tensors,
    /// Mode, steps and rounds, as JSON; the same on all ranks.
    pub progress: String,
}

/// The counts of a state.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Progress {
    mode: String,
    steps: u64,
    /// Rounds and updates of each fragment.
    fragments: Vec<[u64; 2]>,
}

/// The rounds of one rank.
#[derive(Debug)]
pub struct Averager {
    channel: Channel,
    mode: Mode,
    /// Seed of the exchange and of pairs.
    seed: u64,
    timetable: Timetable,
    steps: u64,
    /// The number of parameters.
    parameters: usize,
    parties: Parties,
}

/// The ranks that exchange parameters with this one.
#[derive(Debug)]
enum Parties {
    /// All ranks, fragment by fragment.
    All(Vec<Fragment>),
    /// One other rank in each round.
    Pair(Pairs),
}

impl Progress {
    fn parse(text: &str) -> Result<Progress, Error> {
        serde_json::from_str(text).map_err(|error| {
            Error::Invalid(format!(
                "cannot read the progress of rounds in the saved state: {error}"
            ))
        })
    }
}

impl Averager {
    /// Starts rounds among the ranks of a channel; a collective call. All ranks must have the same
    /// parameters now. `options` are the options of the exchange. A channel can have only one averager.
    ///
    /// # Errors
    /// If the mode has no rounds or invalid settings, there are more fragments than rows of parameters,
    /// an option is for gradients only, ranks differ in mode, options or parameters, a codec is set in
    /// mode `pair`, or a peer is lost.
    pub fn start(
        channel: Channel,
        parameters: &[Parameter],
        mode: Mode,
        options: &Options,
        replica: &impl Replica,
    ) -> Result<Averager, Error> {
        let averager = Averager::form(channel, parameters, mode, options, replica)?;
        averager.agree_on_parameters(replica)?;
        Ok(averager)
    }

    /// Makes the rounds of this rank among the ranks of a channel.
    fn form(
        channel: Channel,
        parameters: &[Parameter],
        mode: Mode,
        options: &Options,
        replica: &impl Replica,
    ) -> Result<Averager, Error> {
        let timetable = mode.timetable().ok_or_else(|| {
            Error::Invalid(format!(
                "mode {mode} has no rounds, expected local, diloco, sma or pair"
            ))
        })?;
        mode.check().map_err(|error| Error::Invalid(error.to_string()))?;
        check_options(options, mode)?;
        let seed = options.seed;
        agree_on_mode(&channel, mode, seed)?;
        let parties = match mode.as_diloco() {
            Some(settings) => {
                let options = &with_feedback(options, settings.alpha)?;
                check_fragments(parameters, settings.fragments)?;
                let among = Among { channel: &channel, parameters, options, settings };
                let fragments = cut(parameters, settings.fragments);
                // States of all fragments lie together.
                let pieces = fragments.iter().flatten().map(|piece| described(piece, parameters));
                check_names(&pieces.collect::<Vec<_>>())?;
                let start = |(pieces, number)| Fragment::start(&among, number, pieces, replica);
                let started = fragments.into_iter().zip(0..).map(start);
                Parties::All(started.collect::<Result<_, _>>()?)
            }
            None => {
                check_pairs(&options.policy)?;
                let lengths = parameters.iter().map(Parameter::elements).collect();
                Parties::Pair(Pairs::start(&channel, seed, lengths, replica))
            }
        };
        let (steps, count) = (0, parameters.len());
        Ok(Averager { channel, mode, seed, timetable, steps, parameters: count, parties })
    }

    /// Checks that all ranks have the same common parameters.
    fn agree_on_parameters(&self, replica: &impl Replica) -> Result<(), Error> {
        let hashes: Vec<u64> = match &self.parties {
            Parties::All(fragments) => fragments.iter().map(Fragment::checksum).collect(),
            Parties::Pair(pairs) => vec![checksum(&pairs.flat(replica)).into()],
        };
        let hashes: Vec<String> = hashes.iter().map(|hash| format!("{hash:08x}")).collect();
        self.channel.agree(&[("the hash of the parameters".to_owned(), hashes.join(" "))])
    }

    /// Checks that all ranks have the same common parameters at the end. If a rank made fewer steps,
    /// its last round has met an ordinary round of another rank, which changes the common parameters
    /// differently.
    fn agree_on_end(&self, replica: &impl Replica) -> Result<(), Error> {
        match self.agree_on_parameters(replica) {
            Err(Error::Disagreement { rank, .. }) => Err(Error::Invalid(format!(
                "{rank} ended with different parameters from this rank, which has made {} steps, \
                 expected the same number on each (hint: give every rank the same number of steps)",
                self.steps
            ))),
            agreed => agreed,
        }
    }

    /// Returns the channel among the ranks.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the synchronisers of the fragments; there are none in mode `pair`.
    pub fn exchanges(&self) -> impl Iterator<Item = &Synchronizer> {
        let fragments: &[Fragment] = match &self.parties {
            Parties::All(fragments) => fragments,
            Parties::Pair(_) => &[],
        };
        fragments.iter().map(Fragment::sync)
    }

    /// Returns whether the end of the next step reads or changes parameters.
    pub fn is_due(&self) -> bool {
        let has_come = matches!(&self.parties, Parties::Pair(pairs) if pairs.has_come());
        has_come || !self.timetable.due(self.steps + 1).is_empty()
    }

    /// Returns the common parameters, in the order of the model's parameters; `None` in mode `pair`.
    pub fn common(&self) -> Option<Vec<Vec<f32>>> {
        let Parties::All(fragments) = &self.parties else { return None };
        let mut all: Vec<Vec<f32>> = vec![Vec::new(); self.parameters];
        // Pieces of a parameter follow each other.
        for (piece, values) in fragments.iter().flat_map(Fragment::common) {
            all[piece.parameter].extend_from_slice(values);
        }
        Some(all)
    }

    /// Starts again from the parameters of this rank, which must be equal on all ranks now. Momentum,
    /// residuals and counts are reset.
    ///
    /// # Errors
    /// If a round is on its way, parameters of ranks differ, or a peer is lost.
    pub fn restart(&mut self, replica: &impl Replica) -> Result<(), Error> {
        self.expect_settled()?;
        self.steps = 0;
        match &mut self.parties {
            Parties::All(fragments) => {
                fragments.iter_mut().try_for_each(|fragment| fragment.restart(replica))?;
            }
            Parties::Pair(pairs) => pairs.publish(replica),
        }
        self.agree_on_parameters(replica)
    }

    /// Begins and ends the rounds that are due after a step in which this rank has changed its
    /// parameters. A rank waits for others only if a round ends, and never in mode `pair`.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn step(&mut self, replica: &mut impl Replica) -> Result<RoundRecord, Error> {
        let begun = Instant::now();
        self.steps += 1;
        let due = self.timetable.due(self.steps);
        let fragments = match &mut self.parties {
            Parties::All(fragments) => fragments,
            Parties::Pair(pairs) => {
                let begins = |action: &Action| match action {
                    Action::Begin(round) => Some(round.number),
                    Action::End(_) => None,
                };
                return pairs.step(&self.channel, due.iter().find_map(begins), replica);
            }
        };
        let mut record = RoundRecord::default();
        for action in due {
            match action {
                Action::Begin(round) => {
                    fragments[round.fragment as usize].begin(replica, begun)?;
                    record.begun += 1;
                }
                Action::End(round) => {
                    let fragment = &mut fragments[round.fragment as usize];
                    record += end(fragment, replica, Stage::Training, self.steps)?;
                }
            }
        }
        Ok(record)
    }

    /// Ends all rounds that are on their way early; a collective call, to be made before a state is
    /// saved.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn settle(&mut self, replica: &mut impl Replica) -> Result<RoundRecord, Error> {
        match &mut self.parties {
            Parties::All(fragments) => {
                let mut record = RoundRecord::default();
                for fragment in fragments {
                    record += end(fragment, replica, Stage::Training, self.steps)?;
                }
                Ok(record)
            }
            Parties::Pair(pairs) => pairs.settle(&self.channel, replica),
        }
    }

    /// Gives all ranks the same parameters at the end of the training; a collective call. In mode
    /// `pair`, these are the mean of all ranks' parameters. In other modes, they are the common
    /// parameters after a last round, which adds the average change as it is, without the outer
    /// optimiser.
    ///
    /// # Errors
    /// If ranks have made such different numbers of steps that the last round of one was not the last
    /// of another, or a peer is lost.
    pub fn finish(&mut self, replica: &mut impl Replica) -> Result<RoundRecord, Error> {
        let mut record = self.settle(replica)?;
        let (started, steps) = (Instant::now(), self.steps);
        match &mut self.parties {
            Parties::All(fragments) => {
                for fragment in fragments.iter_mut().filter(|it| !it.is_united(steps)) {
                    fragment.begin(replica, started)?;
                    record.begun += 1;
                    record += end(fragment, replica, Stage::Last, steps)?;
                }
                self.agree_on_end(replica)?;
            }
            Parties::Pair(pairs) => {
                let values = pairs.flat(replica);
                record.sent_bytes += 4 * values.len() as u64;
                pairs.put(&mean(&self.channel, values)?, replica);
                record.wait_s += started.elapsed().as_secs_f64();
            }
        }
        Ok(record)
    }

    /// Returns whether anything is on its way.
    fn is_underway(&self) -> bool {
        match &self.parties {
            Parties::All(fragments) => fragments.iter().any(Fragment::is_underway),
            Parties::Pair(pairs) => pairs.is_underway(),
        }
    }

    /// Returns an error if anything is on its way.
    fn expect_settled(&self) -> Result<(), Error> {
        match self.is_underway() {
            true => Err(Error::Invalid(
                "a round is on its way, expected none: call settle first".to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Returns the state of this rank, without its own parameters. Call [`Averager::settle`] first.
    pub fn state(&self) -> AveragerState {
        let (mut tensors, mut counts) = (BTreeMap::new(), Vec::new());
        if let Parties::All(fragments) = &self.parties {
            for fragment in fragments {
                fragment.save(&mut tensors);
                counts.push(fragment.counts());
            }
        }
        let progress =
            Progress { mode: self.mode.to_string(), steps: self.steps, fragments: counts };
        let progress = serde_json::to_string(&progress).expect("numbers and a string");
        AveragerState { tensors, progress }
    }

    /// Continues from a state; a collective call before the first step.
    ///
    /// # Errors
    /// If a round is on its way. On all ranks, if the state of any rank is of another mode or model, or
    /// the states were not saved together; nothing has changed then.
    pub fn load(&mut self, state: &AveragerState, replica: &impl Replica) -> Result<(), Error> {
        self.expect_settled()?;
        if let Parties::Pair(pairs) = &mut self.parties {
            pairs.publish(replica);
        }
        let before = self.state();
        let taken = self.take_up(state);
        let progress = ("the progress".to_owned(), state.progress.clone());
        let agreed = self.channel.agree_on_states(taken, &[progress]);
        let agreed = agreed.and_then(|()| match self.parties {
            Parties::All(_) => self.agree_on_parameters(replica),
            Parties::Pair(_) => Ok(()),
        });
        if agreed.is_err() {
            self.take_up(&before)?;
        }
        agreed
    }

    fn take_up(&mut self, state: &AveragerState) -> Result<(), Error> {
        let progress = Progress::parse(&state.progress)?;
        if progress.mode != self.mode.to_string() {
            let (found, expected) = (&progress.mode, self.mode);
            return Err(Error::Invalid(format!(
                "the state is of mode {found}, this training is of mode {expected}"
            )));
        }
        if let Parties::All(fragments) = &mut self.parties {
            let (found, expected) = (progress.fragments.len(), fragments.len());
            if found != expected {
                return Err(Error::Invalid(format!(
                    "the state has {found} fragments, expected {expected}"
                )));
            }
            for (fragment, counts) in fragments.iter_mut().zip(progress.fragments) {
                fragment.load(counts, &state.tensors)?;
            }
        }
        self.steps = progress.steps;
        Ok(())
    }
}

/// Ends the round of a fragment after this step, unless the round was ended early.
fn end(
    fragment: &mut Fragment,
    replica: &mut impl Replica,
    stage: Stage,
    steps: u64,
) -> Result<RoundRecord, Error> {
    if !fragment.is_underway() {
        return Ok(RoundRecord::default());
    }
    let started = Instant::now();
    let outcome = fragment.end(replica, stage, steps)?;
    Ok(RoundRecord {
        begun: 0,
        ended: 1,
        skipped: u32::from(outcome == Outcome::Skipped),
        wait_s: started.elapsed().as_secs_f64(),
        sent_bytes: fragment.sync().record().total(|bucket| bucket.sent_bytes),
    })
}

/// Checks that all ranks train in the same mode.
fn agree_on_mode(channel: &Channel, mode: Mode, seed: u64) -> Result<(), Error> {
    let facts = [("mode", mode.to_string()), ("seed", seed.to_string())];
    channel.agree(&facts.map(|(name, value)| (name.to_owned(), value)))
}

/// Refuses more fragments than rows of parameters, since most would exchange nothing.
fn check_fragments(parameters: &[Parameter], fragments: u32) -> Result<(), Error> {
    match rows(parameters) {
        rows if rows < fragments as usize => Err(Error::Invalid(format!(
            "{fragments} fragments for parameters of {rows} rows in total, expected at most one fragment for each row"
        ))),
        _ => Ok(()),
    }
}

/// Refuses options that are for gradients only, and `auto`, which would measure the link during other
/// exchanges.
fn check_options(options: &Options, mode: Mode) -> Result<(), Error> {
    let momentum =
        options.momentum.map(|momentum| format!("momentum correction {}", momentum.factor));
    let raw = Some(options.warm_up_steps).filter(|steps| *steps > 0);
    let given = [
        matches!(options.policy, Policy::Auto(_)).then(|| format!("codec {}", options.policy)),
        momentum,
        raw.map(|steps| format!("a warm-up of {steps} steps")),
        (options.reduction != Reduction::Mean).then(|| "a sum".to_owned()),
    ];
    given.into_iter().flatten().next().map_or(Ok(()), |given| {
        Err(Error::Invalid(format!(
            "{given} cannot be used with mode {mode}, expected a named codec such as int8 and averages: parameters \
             are exchanged, not gradients"
        )))
    })
}

/// Returns the options with the feedback of a mode in which each rank keeps a part of its own
/// parameters. The same part of an error is contained in the next round's change, so that only the rest
/// may stay in the residual.
fn with_feedback(options: &Options, alpha: f32) -> Result<Options, Error> {
    if alpha == 0.0 || !options.policy.leaves_a_residual() {
        return Ok(options.clone());
    }
    match options.feedback {
        Feedback::Classic => {
            Ok(Options { feedback: Feedback::Average { beta: alpha }, ..options.clone() })
        }
        other => Err(Error::Invalid(format!(
            "feedback {other} does not work with alpha {alpha}, expected classic"
        ))),
    }
}

/// Refuses codecs in mode `pair`, which exchanges parameters themselves, so that nothing would correct
/// codec errors.
fn check_pairs(policy: &Policy) -> Result<(), Error> {
    match policy.to_string().as_str() {
        "none" => Ok(()),
        codec => Err(Error::Invalid(format!(
            "codec {codec} cannot be used with mode pair, expected none: partners send parameters themselves, not their changes"
        ))),
    }
}

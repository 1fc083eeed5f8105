//! Agreement: the facts that all ranks must have in common, and the exchange that compares them.

use std::collections::{BTreeMap, HashSet};

use thinwire_codec::{Choice, laws};
use thinwire_collective::operations::preferred;
use thinwire_collective::{Group, all_gather_bytes};
use thinwire_wire::World;

use crate::options::WARM_UP_STEPS_MAX as STEPS_MAX;
use crate::{Error, Feedback, Options, Parameter, Policy};

/// Refuses `new` parameters that are not the `old` ones. Their order and the framework's buckets may
/// differ.
pub(crate) fn check_same(new: &[Parameter], old: &[Parameter]) -> Result<(), Error> {
    let sorted = |parameters: &[Parameter]| {
        let identity = |p: &Parameter| (p.name.clone(), p.shape.clone(), p.dtype);
        let mut identities: Vec<_> = parameters.iter().map(identity).collect();
        identities.sort();
        identities
    };
    if let Some((new, old)) = sorted(new).iter().zip(&sorted(old)).find(|(new, old)| new != old) {
        return Err(Error::Invalid(format!(
            "parameter {} of {:?} {}, expected {} of {:?} {} as before",
            new.0, new.1, new.2, old.0, old.1, old.2
        )));
    }
    if new.len() != old.len() {
        let (found, expected) = (new.len(), old.len());
        return Err(Error::Invalid(format!("{found} parameters, expected {expected} as before")));
    }
    Ok(())
}

/// Refuses two parameters with the same name, since residuals are saved and loaded by name.
pub(crate) fn check_names(parameters: &[Parameter]) -> Result<(), Error> {
    let mut names = HashSet::new();
    match parameters.iter().find(|parameter| !names.insert(parameter.name.as_str())) {
        Some(Parameter { name, .. }) => {
            Err(Error::Invalid(format!("two parameters are called {name:?}, expected two names")))
        }
        None => Ok(()),
    }
}

/// Refuses a parameter for which no rule has a codec.
pub(crate) fn check_rules(options: &Options, parameters: &[Parameter]) -> Result<(), Error> {
    let Policy::Named(rules) = &options.policy else { return Ok(()) };
    let is_left = |it: &&Parameter| {
        it.transport.is_none() && !rules.iter().any(|rule| rule.matches(it.whole_name()))
    };
    match parameters.iter().find(is_left) {
        Some(Parameter { name, .. }) => Err(Error::Invalid(format!(
            "codec {} has no pattern for {name}, expected one for every parameter (hint: *=none at the end)",
            options.policy
        ))),
        None => Ok(()),
    }
}

/// Refuses codecs from files that break a law, in the options or in a plan.
pub(crate) fn check_laws(options: &Options, parameters: &[Parameter]) -> Result<(), Error> {
    if options.unchecked {
        return Ok(());
    }
    let planned = parameters.iter().filter_map(|parameter| parameter.transport.as_ref());
    let codecs = options.policy.choices().chain(planned.map(|transport| &transport.codec));
    let codecs: BTreeMap<String, &Choice> =
        codecs.map(|codec| (codec.to_string(), codec)).collect();
    codecs.values().try_for_each(|codec| laws::check_file(codec)).map_err(Error::Invalid)
}

/// Refuses options that do not go together among this number of ranks: those that [`check_options`]
/// refuses, and an algorithm for another number of ranks.
///
/// # Errors
/// If [`check_options`] returns an error, or the algorithm is for another number of ranks.
pub fn check_combination(options: &Options, world: World) -> Result<(), Error> {
    check_exchange(options, world)?;
    let asked = options.algorithm.map_or(Ok(()), |asked| asked.check(world.size()));
    asked.map_err(Error::Invalid)
}

/// Refuses options that contradict each other, whatever the number of ranks: an algorithm, an error
/// budget, a feedback or a warm-up that does not suit the codec.
///
/// # Errors
/// If the algorithm cannot carry the codec, a budget is set although codecs are named, a warm-up is set
/// although the codec has none, or a feedback is set although the codec leaves no residual.
pub fn check_options(options: &Options) -> Result<(), Error> {
    // The number of ranks only changes the advice.
    check_exchange(options, World::alone())
}

fn check_exchange(options: &Options, world: World) -> Result<(), Error> {
    if let Some(budget) = options.idle_budget() {
        return Err(Error::Invalid(format!(
            "error budget {budget} has no effect with codec {}: only auto without a list of \
             codecs has one",
            options.policy
        )));
    }
    check_warm_up(options)?;
    if options.feedback != Feedback::Classic && !options.policy.leaves_a_residual() {
        return Err(Error::Invalid(format!(
            "feedback {} has no effect with codec {}, which leaves nothing to feed back",
            options.feedback, options.policy
        )));
    }
    let Some(asked) = options.algorithm else { return Ok(()) };
    let mut choices = options.policy.choices();
    let Some(choice) = choices.find(|choice| !asked.carries(choice.exchange())) else {
        return Ok(());
    };
    let needed = preferred(choice.exchange(), world, 0);
    Err(Error::Invalid(format!(
        "codec {choice} travels by {needed}, not by {asked}: its sums cannot be encoded at every hop"
    )))
}

/// Refuses a warm-up with `auto`, or one that f32 cannot count.
fn check_warm_up(options: &Options) -> Result<(), Error> {
    let Options { policy, warm_up_steps: steps, .. } = options;
    match policy {
        Policy::Auto(_) if *steps > 0 => Err(Error::Invalid(format!(
            "codec {policy} takes no warm-up, found {steps} steps: leave the warm-up out, or name a codec"
        ))),
        _ if *steps > STEPS_MAX => {
            Err(Error::Invalid(format!("a warm-up of {steps} steps, expected at most {STEPS_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Returns the facts that must be equal on all ranks for buckets to match.
pub(crate) fn identity(parameters: &[Parameter], options: &Options) -> Vec<(String, String)> {
    let total: usize = parameters.iter().map(Parameter::elements).sum();
    let describe = |p: &Parameter| format!("{}{:?}{} in {}", p.name, p.shape, p.dtype, p.bucket);
    let shapes: Vec<String> = parameters.iter().map(describe).collect();
    let hash = thinwire_wire::checksum(shapes.join(",").as_bytes());
    let algorithm = options.algorithm.map_or("auto".to_owned(), |algorithm| algorithm.to_string());
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact(
            "parameters",
            format!("{} tensors of {total} elements (hash {hash:08x})", parameters.len()),
        ),
        fact("codec", options.policy.to_string()),
        fact("algorithm", algorithm),
        fact("bucket bytes", options.bucket_bytes.to_string()),
        fact("seed", options.seed.to_string()),
        fact("unchecked", options.unchecked.to_string()),
        fact("error budget", options.error_budget.to_string()),
        fact("feedback", options.feedback.to_string()),
        fact("warm-up steps", options.warm_up_steps.to_string()),
        fact("momentum", options.momentum.map_or("none".to_owned(), |own| own.to_string())),
    ]
}

/// Checks that every fact has the same value on all ranks.
///
/// # Errors
/// If a value differs on another rank, or a peer is lost.
pub fn agree(group: &mut Group, facts: &[(String, String)]) -> Result<(), Error> {
    let all = all_gather_bytes(group, &encode_facts(facts))?;
    compare(facts, &all, group.world())
}

/// Encodes facts as they travel.
pub(crate) fn encode_facts(facts: &[(String, String)]) -> Vec<u8> {
    serde_json::to_vec(facts).expect("strings can be written as JSON")
}

/// Returns the facts of another rank; none if the bytes cannot be decoded.
pub(crate) fn decode_facts(bytes: &[u8]) -> Vec<(String, String)> {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// Finds the first fact that another rank does not share.
pub(crate) fn compare(
    mine: &[(String, String)],
    all: &[Vec<u8>],
    world: World,
) -> Result<(), Error> {
    for (rank, theirs) in world.ranks().zip(all) {
        let theirs = decode_facts(theirs);
        for (about, value) in mine {
            let other = theirs.iter().find(|(name, _)| name == about);
            let other = other.map_or("nothing", |(_, value)| value.as_str());
            if other != value {
                return Err(Error::Disagreement {
                    about: about.clone(),
                    mine: value.clone(),
                    rank,
                    theirs: other.to_owned(),
                });
            }
        }
    }
    Ok(())
}

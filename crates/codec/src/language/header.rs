//! Checks of the lines before `encode`: block, parameters, exchange and claims.

use super::expression::Checker;
use super::program::{Claim, Formula, evaluate};
use super::refusal::Refusal;
use super::syntax::{Definition, Expression, Header, Literal, Name, Place};
use super::value::{Kind, Value};
use crate::Exchange;
use crate::shown::{Number, short};

/// Largest number of elements of a block, of which a few registers fit into the nearest cache.
const BLOCK_MAX: usize = 4096;

/// Facts of a header.
pub(crate) struct Facts {
    pub parameters: Vec<(String, f64)>,
    pub block: Option<usize>,
    pub exchange: Exchange,
    pub feedback: bool,
    pub claim: Claim,
}

/// Checks the header with the `given` parameters, and names its constants.
///
/// # Errors
/// The first line that does not check, or a given parameter that the codec does not have.
pub(crate) fn check(
    text: &Definition,
    given: &[(String, f64)],
    checker: &mut Checker,
) -> Result<Facts, Refusal> {
    let mut facts = Facts {
        parameters: Vec::new(),
        block: None,
        exchange: Exchange::Gather,
        feedback: false,
        claim: Claim::Nothing,
    };
    let (mut exchange, mut claimed_at) = (None, None);
    for line in &text.header {
        match line {
            Header::Block(size) => facts.block = Some(block(checker, size, &facts)?),
            Header::Parameter { name, default, range } => {
                let value = parameter(checker, name, *default, *range, given)?;
                facts.parameters.push((name.text.clone(), value));
            }
            Header::Exchange(name) => exchange = Some(exchange_of(name)?),
            Header::Feedback => facts.feedback = true,
            Header::Contraction(value) => {
                facts.claim = Claim::Contraction(claimed(checker, value, &mut claimed_at)?);
            }
            Header::Variance(value) => {
                facts.claim = Claim::Variance(claimed(checker, value, &mut claimed_at)?);
            }
            Header::Constant(name, value) => {
                let value = constant(checker, value)?;
                checker.name(name, value)?;
            }
        }
    }
    known(&facts.parameters, given)?;
    if let Some(place) = claimed_at {
        in_range(checker, facts.claim, facts.block, place)?;
    }
    facts.exchange = exchange.unwrap_or(match facts.block {
        Some(_) => Exchange::TwoShot,
        None => Exchange::Gather,
    });
    Ok(facts)
}

fn block(checker: &mut Checker, size: &Expression, facts: &Facts) -> Result<usize, Refusal> {
    let value = constant(checker, size)?.constant().unwrap_or_default();
    let found = checker.known(value);
    if facts.block.is_some() {
        return Err(Refusal::at(size.place, "block is given twice"));
    }
    if found.fract() != 0.0 || !(1.0..=BLOCK_MAX as f64).contains(&found) {
        let found = checker.described(value);
        let message =
            format!("block of {found} elements, expected a whole number, 1 to {BLOCK_MAX}");
        return Err(Refusal::at(size.place, message)
            .hint("without a block, a codec works on whole tensors"));
    }
    let number = checker.constant(Formula::Number(found), Kind::Int);
    checker.define("block", number);
    Ok(found as usize)
}

fn parameter(
    checker: &mut Checker,
    name: &Name,
    default: Literal,
    range: Option<(f64, f64)>,
    given: &[(String, f64)],
) -> Result<f64, Refusal> {
    let given = given.iter().find(|(known, _)| *known == name.text).map(|(_, value)| *value);
    let value = given.unwrap_or(default.value);
    let refused = |message: String| match (Refusal::at(name.place, message), given) {
        (refusal, Some(_)) => refusal.of_parameter(),
        (refusal, None) => refusal,
    };
    if let Some((least, most)) = range
        && !(least..=most).contains(&value)
    {
        return Err(refused(format!(
            "{} = {}, expected {} to {}",
            name.text,
            Number(value),
            Number(least),
            Number(most)
        )));
    }
    if default.is_int && value.fract() != 0.0 {
        let message = format!("{} = {}, expected a whole number", name.text, Number(value));
        return Err(
            refused(message).hint("a parameter whose default is whole takes only whole numbers")
        );
    }
    let kind = if default.is_int { Kind::Int } else { Kind::Number };
    let constant = checker.constant(Formula::Number(value), kind);
    checker.name(name, constant)?;
    Ok(value)
}

fn exchange_of(name: &Name) -> Result<Exchange, Refusal> {
    match name.text.as_str() {
        "two_shot" => Ok(Exchange::TwoShot),
        "gather" => Ok(Exchange::Gather),
        found => {
            let message = format!("exchange '{found}', expected two_shot or gather");
            Err(Refusal::at(name.place, message))
        }
    }
}

/// Returns the constant of the only claim, and sets its place.
fn claimed(
    checker: &mut Checker,
    value: &Expression,
    claimed_at: &mut Option<Place>,
) -> Result<usize, Refusal> {
    let constant = constant(checker, value)?.constant().unwrap_or_default();
    match claimed_at.replace(value.place) {
        None => Ok(constant),
        Some(_) => Err(Refusal::at(value.place, "contraction or variance is claimed twice")),
    }
}

/// Checks, for blocks of several lengths, that a claim is in the range that a codec can keep.
fn in_range(
    checker: &Checker,
    claim: Claim,
    block: Option<usize>,
    place: Place,
) -> Result<(), Refusal> {
    let (name, constant, most, expected) = match claim {
        Claim::Nothing => return Ok(()),
        Claim::Contraction(constant) => ("contraction", constant, 1.0, "0 to 1"),
        Claim::Variance(constant) => {
            ("variance", constant, f64::MAX, "a finite number of 0 or more")
        }
    };
    for elements in [1, 7, 65, 1009, 1 << 20].map(|length| block.unwrap_or(length).min(length)) {
        let found = evaluate(&checker.constants, elements)[constant];
        if !(0.0..=most).contains(&found) {
            let message =
                format!("{name} of {} for {elements} elements, expected {expected}", Number(found));
            return Err(Refusal::at(place, message));
        }
    }
    Ok(())
}

fn constant(checker: &mut Checker, value: &Expression) -> Result<Value, Refusal> {
    let found = checker.expression(value)?;
    match found.constant() {
        Some(_) => Ok(found),
        None => {
            let message =
                format!("a constant is expected before encode, found {}", found.describe());
            Err(Refusal::at(value.place, message))
        }
    }
}

/// Checks that the codec has all given parameters.
fn known(parameters: &[(String, f64)], given: &[(String, f64)]) -> Result<(), Refusal> {
    let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
    let Some((name, _)) = given.iter().find(|(name, _)| !names.contains(&name.as_str())) else {
        return Ok(());
    };
    let name = short(name);
    let message = match names.is_empty() {
        true => format!("unknown parameter '{name}', the codec has none"),
        false => format!("unknown parameter '{name}', expected one of {}", names.join(", ")),
    };
    Err(Refusal::codec(message).of_parameter())
}

impl Checker {
    /// Formats a constant for errors.
    pub(crate) fn described(&self, constant: usize) -> String {
        let at = |elements| evaluate(&self.constants, elements)[constant];
        let (short, long) = (at(1), at(1 << 20));
        match short == long || short.is_nan() {
            true => Number(short).to_string(),
            false => "a varying number of".to_owned(),
        }
    }

    /// Returns the value of a constant; NaN if it depends on the number of elements.
    pub(crate) fn known(&self, constant: usize) -> f64 {
        let [short, odd, long] =
            [1, 1009, 1 << 20].map(|elements| evaluate(&self.constants, elements)[constant]);
        if short == odd && odd == long { short } else { f64::NAN }
    }
}

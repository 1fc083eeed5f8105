//! Functions of the language by name.

use super::expression::{Checker, Section};
use super::program::{Binary, Comparison, Formula, Length, Operation, Reduction, Unary};
use super::refusal::{Refusal, nearest};
use super::syntax::Place;
use super::value::{Kind, Value, common};

/// Every function with the usage that errors show.
pub(crate) const FUNCTIONS: [(&str, &str); 26] = [
    ("abs", "abs(x)"),
    ("sqrt", "sqrt(x)"),
    ("floor", "floor(x)"),
    ("ceil", "ceil(x)"),
    ("round", "round(x)"),
    ("round_random", "round_random(x)"),
    ("digits", "digits(x, COUNT)"),
    ("digits_up", "digits_up(x, COUNT)"),
    ("min", "min(a, b) or min(x)"),
    ("max", "max(a, b) or max(x)"),
    ("sum", "sum(x)"),
    ("mean", "mean(x)"),
    ("count", "count(mask)"),
    ("scan", "scan(x)"),
    ("shift", "shift(x, PLACES)"),
    ("transform", "transform(x)"),
    ("select", "select(mask, a, b)"),
    ("random", "random()"),
    ("largest", "largest(x, COUNT) or largest(x, mask, COUNT)"),
    ("where", "where(mask, COUNT)"),
    ("rank", "rank(x, COUNT)"),
    ("sample", "sample(x, COUNT)"),
    ("filter", "filter(x, mask, COUNT)"),
    ("sign", "sign(x)"),
    ("negative", "negative(x)"),
    ("scatter", "scatter(indices, numbers)"),
];

/// Returns the refusal of a call with a wrong number of arguments.
pub(crate) fn wrong_count(name: &str, found: usize, place: Place) -> Refusal {
    let usage = FUNCTIONS.iter().find(|(known, _)| *known == name).map_or("", |(_, usage)| usage);
    let message = format!("{name} with {found} arguments, expected {usage}");
    Refusal::at(place, message)
}

/// Functions that draw random numbers, which only the rank that encodes has.
const DRAWING: [&str; 4] = ["random", "round_random", "where", "filter"];

/// Adds the instructions of a call; returns the value.
pub(crate) fn call(
    checker: &mut Checker,
    name: &str,
    arguments: &[Value],
    place: Place,
) -> Result<Value, Refusal> {
    if checker.section == Section::Decode && DRAWING.contains(&name) {
        let refusal =
            Refusal::at(place, format!("{name} draws random numbers, which decode cannot do"));
        return Err(refusal.hint("let encode draw the numbers and emit them"));
    }
    match (name, arguments) {
        ("abs", [x]) => checker.unary(Unary::Absolute, *x, place, name),
        ("sqrt", [x]) => checker.unary(Unary::Sqrt, *x, place, name),
        ("floor", [x]) => checker.unary(Unary::Floor, *x, place, name),
        ("ceil", [x]) => checker.unary(Unary::Ceiling, *x, place, name),
        ("round" | "round_random", [x]) => round(checker, *x, place, name),
        ("digits" | "digits_up", [x, count]) => digits(checker, *x, *count, place, name),
        ("min", [a, b]) => checker.binary(Binary::Min, *a, *b, place, name),
        ("max", [a, b]) => checker.binary(Binary::Max, *a, *b, place, name),
        ("sum", [x]) => reduce(checker, Reduction::Sum, *x, place, name),
        ("min", [x]) => reduce(checker, Reduction::Min, *x, place, name),
        ("max", [x]) => reduce(checker, Reduction::Max, *x, place, name),
        ("mean", [x]) => reduce(checker, Reduction::Mean, *x, place, name),
        ("count", [mask]) => {
            checker.require(Kind::Mask, *mask, place, name)?;
            Ok(checker.result(
                Kind::Int,
                Length::One,
                Operation::Reduce(Reduction::Sum, mask.operand),
            ))
        }
        ("scan", [x]) => {
            let x = per_element(checker, *x, place, name)?;
            Ok(checker.result(Kind::Number, x.length(), Operation::Scan(x.operand)))
        }
        ("shift", [x, places]) => shift(checker, *x, *places, place),
        ("transform", [x]) => {
            let x = all_elements(checker, *x, place, name)?;
            Ok(checker.result(Kind::Number, Length::Elements, Operation::Transform(x.operand)))
        }
        ("select", [mask, a, b]) => select(checker, [*mask, *a, *b], place),
        ("sign", [x]) => sign(checker, *x, place),
        ("negative", [x]) => {
            let x = per_element(checker, *x, place, name)?;
            Ok(checker.result(Kind::Mask, x.length(), Operation::Negative(x.operand)))
        }
        ("random", []) => Ok(checker.result(Kind::Number, Length::Elements, Operation::Random)),
        ("largest", [x, count]) => {
            let x = all_elements(checker, *x, place, name)?;
            let length = counted(*count, place, name)?;
            Ok(checker.result(Kind::Indices, length, Operation::Largest(x.operand)))
        }
        ("largest", [x, mask, count]) => {
            let x = all_elements(checker, *x, place, name)?;
            let mask = mask_of_all(checker, *mask, place, name)?;
            let length = counted(*count, place, name)?;
            let operation = Operation::LargestWhere(x.operand, mask.operand);
            Ok(checker.result(Kind::Indices, length, operation))
        }
        ("where", [mask, count]) => locate(checker, *mask, *count, place),
        ("filter", [x, mask, count]) => {
            let indices = locate(checker, *mask, *count, place)?;
            let x = all_elements(checker, *x, place, name)?;
            let gather = Operation::Gather(x.operand, indices.operand);
            Ok(checker.result(Kind::Number, indices.length(), gather))
        }
        ("sample", [x, count]) => {
            let x = all_elements(checker, *x, place, name)?;
            let length = counted(*count, place, name)?;
            let operation = Operation::Sample { value: x.operand, absolute: false };
            Ok(checker.result(Kind::Number, length, operation))
        }
        ("rank", [x, count]) => {
            let x = per_element(checker, *x, place, name)?;
            let Length::Count(count) = counted(*count, place, name)? else {
                return Err(wrong_count(name, arguments.len(), place));
            };
            let operation = Operation::Rank { value: x.operand, count };
            Ok(checker.result(Kind::Number, Length::One, operation))
        }
        ("scatter", [_, _]) => Err(Refusal::at(place, "scatter is not the outermost function")
            .hint("yield scatter(INDICES, NUMBERS)")),
        _ => Err(unknown(name, arguments.len(), place)),
    }
}

fn unknown(name: &str, arguments: usize, place: Place) -> Refusal {
    if FUNCTIONS.iter().any(|(known, _)| *known == name) {
        return wrong_count(name, arguments, place);
    }
    let known = FUNCTIONS.iter().map(|(name, _)| *name);
    let refusal = Refusal::at(place, format!("no function is called '{name}'"));
    match nearest(name, known.clone()) {
        Some(near) => refusal.hint(format!("did you mean '{near}'?")),
        None => refusal.hint(format!("functions are {}", known.collect::<Vec<_>>().join(", "))),
    }
}

fn round(checker: &mut Checker, x: Value, place: Place, name: &str) -> Result<Value, Refusal> {
    checker.require_number(x, place, name)?;
    if x.kind == Kind::Int {
        return Ok(x);
    }
    if x.length() == Length::Constant {
        let message = format!("{name} of a constant");
        return Err(
            Refusal::at(place, message).hint("floor(...) and ceil(...) make constants whole")
        );
    }
    if name == "round_random" && x.length() != Length::Elements {
        let message = format!("{name} takes a number per element, found {}", x.describe());
        return Err(Refusal::at(place, message));
    }
    let operation = match name {
        "round" => Operation::Round(x.operand),
        _ => Operation::RoundRandom(x.operand),
    };
    Ok(checker.result(Kind::Int, x.length(), operation))
}

fn digits(
    checker: &mut Checker,
    x: Value,
    count: Value,
    place: Place,
    name: &str,
) -> Result<Value, Refusal> {
    checker.require_number(x, place, name)?;
    let known = count.constant().map(|count| checker.known(count));
    let Some(digits @ 1.0..=24.0) = known else {
        let described = |count| checker.described(count);
        let found = count.constant().map_or("no constant".to_owned(), described);
        return Err(Refusal::at(place, format!("{name} keeps {found} digits, expected 1 to 24")));
    };
    let value = checker.number(x);
    let operation = Operation::Digits { value, digits: digits as u32, up: name == "digits_up" };
    Ok(checker.result(Kind::Number, x.length(), operation))
}

fn reduce(
    checker: &mut Checker,
    reduction: Reduction,
    x: Value,
    place: Place,
    name: &str,
) -> Result<Value, Refusal> {
    let x = per_element(checker, x, place, name)?;
    let operation = Operation::Reduce(reduction, x.operand);
    Ok(checker.result(Kind::Number, Length::One, operation))
}

fn select(checker: &mut Checker, [mask, a, b]: [Value; 3], place: Place) -> Result<Value, Refusal> {
    checker.require(Kind::Mask, mask, place, "select")?;
    checker.require_number(a, place, "select")?;
    checker.require_number(b, place, "select")?;
    let length = checker.together(mask, a, place)?;
    let whole = a.kind == Kind::Int && b.kind == Kind::Int;
    let both = checker.together(a, b, place)?;
    let Some(length) = common(length, both) else {
        let message = format!("{} cannot be combined with {}", mask.describe(), b.describe());
        return Err(Refusal::at(place, message));
    };
    let (kind, a, b) = match whole {
        true => (Kind::Int, a.operand, b.operand),
        false => (Kind::Number, checker.number(a), checker.number(b)),
    };
    Ok(checker.result(kind, length, Operation::Select(mask.operand, a, b)))
}

/// Adds the instructions of a sign: -1, 0 or 1.
fn sign(checker: &mut Checker, x: Value, place: Place) -> Result<Value, Refusal> {
    checker.require_number(x, place, "sign")?;
    let [minus, zero, one] =
        [-1.0, 0.0, 1.0].map(|number| checker.constant(Formula::Number(number), Kind::Int).operand);
    let x = Value { kind: Kind::Number, operand: checker.number(x) };
    let below = Operation::Compare(Comparison::Below, x.operand, zero);
    let below = checker.result(Kind::Mask, x.length(), below).operand;
    let above = Operation::Compare(Comparison::Below, zero, x.operand);
    let above = checker.result(Kind::Mask, x.length(), above).operand;
    let rest = checker.result(Kind::Int, x.length(), Operation::Select(above, one, zero));
    let operation = Operation::Select(below, minus, rest.operand);
    Ok(checker.result(Kind::Int, x.length(), operation))
}

fn shift(checker: &mut Checker, x: Value, places: Value, place: Place) -> Result<Value, Refusal> {
    checker.require_number(x, place, "shift")?;
    if matches!(x.length(), Length::Constant | Length::One) {
        let message = format!("shift takes many numbers of a block, found {}", x.describe());
        return Err(Refusal::at(place, message));
    }
    let (Kind::Int, Some(by)) = (places.kind, places.constant()) else {
        let found = places.describe();
        let message = format!("shift takes a constant whole number of places, found {found}");
        return Err(Refusal::at(place, message)
            .hint("shift(x, 1) is the element before, shift(x, -1) the one after"));
    };
    Ok(checker.result(x.kind, x.length(), Operation::Shift { value: x.operand, by }))
}

fn locate(
    checker: &mut Checker,
    mask: Value,
    count: Value,
    place: Place,
) -> Result<Value, Refusal> {
    let mask = mask_of_all(checker, mask, place, "where")?;
    let length = counted(count, place, "where")?;
    Ok(checker.result(Kind::Indices, length, Operation::Where(mask.operand)))
}

/// Checks that a value is a mask per element.
fn mask_of_all(
    checker: &mut Checker,
    mask: Value,
    place: Place,
    name: &str,
) -> Result<Value, Refusal> {
    checker.require(Kind::Mask, mask, place, name)?;
    if mask.length() == Length::Elements {
        return Ok(mask);
    }
    let message = format!("{name} takes a mask per element, found {}", mask.describe());
    Err(Refusal::at(place, message))
}

/// Checks that a value has many numbers per block; returns them as f32.
fn per_element(
    checker: &mut Checker,
    x: Value,
    place: Place,
    name: &str,
) -> Result<Value, Refusal> {
    checker.require_number(x, place, name)?;
    if matches!(x.length(), Length::Constant | Length::One) {
        let message = format!("{name} takes many numbers of a block, found {}", x.describe());
        return Err(Refusal::at(place, message));
    }
    Ok(Value { kind: Kind::Number, operand: checker.number(x) })
}

/// Checks that a value is a number per element; returns it as f32.
fn all_elements(
    checker: &mut Checker,
    x: Value,
    place: Place,
    name: &str,
) -> Result<Value, Refusal> {
    let x = per_element(checker, x, place, name)?;
    if x.length() != Length::Elements {
        let message = format!("{name} takes a number per element, found {}", x.describe());
        return Err(Refusal::at(place, message));
    }
    Ok(x)
}

/// Returns the length that a constant gives.
fn counted(count: Value, place: Place, name: &str) -> Result<Length, Refusal> {
    match (count.kind, count.constant()) {
        (Kind::Int, Some(constant)) => Ok(Length::Count(constant)),
        _ => {
            let found = count.describe();
            let message = format!("{name} takes a constant whole number as count, found {found}");
            Err(Refusal::at(place, message).hint("ceil(ratio * elements) is such a number"))
        }
    }
}

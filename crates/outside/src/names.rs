//! Laws of the names that users give to codecs, policies, algorithms, links and pins.

use std::fmt::Display;
use std::str::FromStr;

use thinwire_codec::Choice;
use thinwire_link::Bandwidth;
use thinwire_plan::search::Pin;
use thinwire_schedule::Summation;
use thinwire_sync::{Feedback, Policy};
use thinwire_wire::DType;

/// Checks that any text is either refused with an error or read as the name of a codec, which is written
/// back unchanged.
pub fn choice(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else { return };
    // Names of files are left out: the path decides what is read.
    if !name.contains(".codec") {
        writes_itself_back::<Choice>(name);
    }
}

/// Checks that any text is either refused with an error or read as a policy, a feedback, an algorithm, a
/// bandwidth, a pin or a dtype, which is written back unchanged.
pub fn names(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else { return };
    writes_itself_back::<Feedback>(name);
    writes_itself_back::<Summation>(name);
    writes_itself_back::<Bandwidth>(name);
    writes_itself_back::<Pin>(name);
    writes_itself_back::<DType>(name);
    if !name.contains(".codec") {
        writes_itself_back::<Policy>(name);
    }
}

fn writes_itself_back<T: FromStr + Display>(name: &str)
where
    T::Err: Display,
{
    match name.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            let Ok(again) = written.parse::<T>() else { panic!("'{written}' does not parse back") };
            assert_eq!(again.to_string(), written);
        }
        Err(error) => drop(error.to_string()),
    }
}

//! Table of all codecs, and the one place that reads the name of a codec.

use std::str::FromStr;

use crate::choice::{Choice, Entry};
use crate::shown::short;
use crate::{
    Error, Kind, blockwise, cast, dct, dynamic8, ecsq, float8, ints, intsgd, language, lloyd,
    lossless, natural, powersgd, qsgd, randomk, signs, sparse, tbq, vote,
};

/// Every codec in the order in which users see them. A new codec needs a file of its own and a line here.
pub const CODECS: [Entry; 27] = [
    cast::NONE,
    cast::F16,
    cast::BF16,
    lossless::ENTRY,
    ints::INT8,
    ints::INT4,
    ints::INT3,
    ecsq::ENTRY,
    lloyd::ENTRY,
    signs::INT2,
    signs::ONEBIT,
    vote::ENTRY,
    qsgd::TERNGRAD,
    qsgd::QSGD,
    natural::ENTRY,
    float8::E4M3,
    float8::E5M2,
    dynamic8::ENTRY,
    tbq::ENTRY,
    sparse::TOPK,
    blockwise::ENTRY,
    sparse::GRADDROP,
    sparse::DGC,
    randomk::ENTRY,
    dct::ENTRY,
    // A choice has these two as they are, so that their files know nothing of choices.
    Entry {
        usage: "intsgd[:BITS]",
        summary: "integers under a scale that all ranks share, exact sums, 1 or 2 bytes per element",
        examples: &["intsgd", "intsgd:16"],
        parse: |parameter| intsgd::parse(parameter).map(Choice::Integers),
    },
    Entry {
        usage: "powersgd:LOW_RANK[:alternate]",
        summary: "a matrix as the product of two thin ones, (rows + columns) * LOW_RANK f32",
        examples: &["powersgd:1", "powersgd:4", "powersgd:4:alternate"],
        parse: |parameter| powersgd::parse(parameter).map(Choice::LowRank),
    },
];

impl Choice {
    /// Returns the codec called `name`, or the one in a file whose name ends in `.codec`.
    ///
    /// # Errors
    /// If there is no such codec, its parameter is missing, superfluous or out of range, or the
    /// file is refused.
    pub fn parse(name: &str) -> Result<Choice, Error> {
        if language::is_file(name) {
            return language::load(name);
        }
        let (head, parameter) = match name.split_once(':') {
            Some((head, parameter)) => (head, Some(parameter)),
            None => (name, None),
        };
        let entry =
            CODECS.iter().find(|entry| entry.name() == head).ok_or_else(|| unknown(name))?;
        (entry.parse)(parameter)
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Choice, Error> {
        Choice::parse(name)
    }
}

/// Returns every example of every codec in [`CODECS`].
pub fn all() -> Vec<Choice> {
    let examples = CODECS.iter().flat_map(|entry| entry.examples);
    examples.map(|name| Choice::parse(name).expect("an example is a valid name")).collect()
}

fn unknown(name: &str) -> Error {
    let (name, known) = (short(name), CODECS.iter().map(|entry| entry.usage).collect::<Vec<_>>());
    let context = format!("unknown codec '{name}', expected one of {}", known.join(", "));
    Error::new(Kind::Unknown, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str) -> String {
        Choice::parse(name).map(|choice| choice.to_string()).unwrap_err().to_string()
    }

    #[test]
    fn names_parse_back() {
        for entry in CODECS {
            for example in entry.examples {
                assert_eq!(Choice::parse(example).unwrap().to_string(), *example);
                assert!(example.starts_with(entry.name()) && entry.usage.starts_with(entry.name()));
            }
        }
        assert_eq!("intsgd:8".parse::<Choice>().unwrap().to_string(), "intsgd");
        for values in ["tbq:0.5", "vote", "qsgd:4", "topk:0.5", "randomk:0.5", "intsgd"] {
            let said = error(&format!("blocktopk:1/8:{values}"));
            assert!(said.starts_with(&format!("blocktopk values '{values}', expected")), "{said}");
        }
        assert_eq!("blocktopk:1/8:none".parse::<Choice>().unwrap().to_string(), "blocktopk:1/8");
        assert_eq!("int8:nearest".parse::<Choice>().unwrap().to_string(), "int8");
    }

    #[test]
    fn refusals_name_what_was_found_and_what_is_expected() {
        for (name, expected) in [
            (
                "zip",
                "unknown codec 'zip', expected one of none, f16, bf16, lossless[:bf16], int8[:stochastic], \
                 int4[:stochastic|:least-squares], int3[:stochastic|:least-squares], ecsq:STEP, lloyd:BITS, int2, onebit, vote, \
                 terngrad[:CLIP], qsgd:BITS[:l2], natural, e4m3, e5m2, dynamic8, tbq:TAU, \
                 topk:RATIO, blocktopk:K/BLOCK[:VALUES], graddrop:RATIO, dgc:RATIO, \
                 randomk:RATIO[:block], dct:K, intsgd[:BITS], powersgd:LOW_RANK[:alternate]",
            ),
            ("none:1", "codec none takes no parameter, found '1'"),
            ("f16:", "codec f16 takes no parameter, found ''"),
            ("int8:foo", "int8 rounding 'foo', expected 'nearest' or 'stochastic'"),
            ("topk", "topk ratio nothing, expected a number above 0 and at most 1"),
            ("topk:0", "topk ratio '0', expected a number above 0 and at most 1"),
            ("topk:2", "topk ratio '2', expected a number above 0 and at most 1"),
            ("topk:NaN", "topk ratio 'NaN', expected a number above 0 and at most 1"),
            ("lloyd:5", "lloyd bits '5', expected 1..=4"),
            (
                "blocktopk:65/64",
                "blocktopk elements '65/64', expected K/BLOCK with a K of 1..=BLOCK and a BLOCK of 1..=65536",
            ),
            (
                "blocktopk:1/64:blocktopk:1/64",
                "blocktopk values 'blocktopk:1/64', expected a codec of every element whose error is \
                 bounded, such as lloyd:2 or int8",
            ),
            ("blocktopk:1/64:int8:foo", "int8 rounding 'foo', expected 'nearest' or 'stochastic'"),
            ("intsgd:4", "intsgd bits '4', expected 8 or 16"),
            ("powersgd:0", "powersgd low rank '0', expected 1..=256"),
            ("powersgd:-1", "powersgd low rank '-1', expected 1..=256"),
            ("powersgd", "powersgd low rank nothing, expected 1..=256"),
            ("powersgd:x:alternate", "powersgd low rank 'x', expected 1..=256"),
            ("powersgd:2:both", "powersgd factors 'both', expected 'alternate'"),
        ] {
            assert_eq!(error(name), expected);
        }
        assert_eq!(Choice::parse("").unwrap_err().kind(), Kind::Unknown);
        assert_eq!(Choice::parse("topk:0").unwrap_err().kind(), Kind::Parameter);
    }

    proptest::proptest! {
        #[test]
        fn any_name_parses_or_is_refused_in_one_line(name in "[a-z0-9:.-]{0,12}|topk:.{0,6}|blocktopk:[0-9]/[0-9:a-z]{0,6}|powersgd:.{0,6}") {
            if let Err(error) = Choice::parse(&name) {
                proptest::prop_assert!(name.contains('\n') || !error.to_string().contains('\n'));
            }
        }
    }
}

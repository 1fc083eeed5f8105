//! Policies: the codecs that buckets may travel by.

use std::fmt;
use std::str::FromStr;

use thinwire_codec::{Choice, Kind};

use crate::Rule;
use crate::bucket::momentum;
use crate::exchange::choose::leaves_residual;

/// The number of names of parameters that a warning shows.
const NAMES_SHOWN: usize = 3;

/// The choice of a codec for every bucket.
#[derive(Clone, Debug)]
pub enum Policy {
    /// One codec for all buckets but exempt ones.
    Fixed(Choice),
    /// `auto`: for each bucket raw or one of these codecs, or if there are none one of [`Policy::AUTO`] within
    /// the error budget, by measurements and by trials.
    Auto(Vec<Choice>),
    /// `PATTERN=CODEC,PATTERN=CODEC`: for each parameter the codec of the first rule that matches its name.
    Named(Vec<Rule>),
}

impl Policy {
    /// The names of the codecs that `auto` chooses from besides raw, unless codecs are named.
    pub const AUTO: [&str; 17] = [
        "bf16",
        "lossless",
        "lossless:bf16",
        "int8",
        "int4",
        "int3",
        "int4:least-squares",
        "int3:least-squares",
        "int2",
        "onebit",
        "ecsq:0.25",
        "ecsq:0.35",
        "ecsq:0.5",
        "ecsq:0.7",
        "ecsq:1",
        "ecsq:1.2",
        "ecsq:1.4",
    ];

    /// The codec that a plan calls `name`: one of those that were asked for, or any that has a name of
    /// its own. A codec's text is only known to whoever was given its file.
    pub(crate) fn choice(&self, name: &str) -> Result<Choice, thinwire_codec::Error> {
        match self.choices().find(|choice| choice.to_string() == name) {
            Some(choice) => Ok(choice.clone()),
            None => Choice::parse(name),
        }
    }

    /// The codecs that it names.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        let (choices, rules): (&[Choice], &[Rule]) = match self {
            Policy::Fixed(choice) => (std::slice::from_ref(choice), &[]),
            Policy::Auto(among) => (among, &[]),
            Policy::Named(rules) => (&[], rules),
        };
        choices.iter().chain(rules.iter().map(|rule| &rule.codec))
    }

    /// The number of the rule for a parameter of this name, the same for all rules with one codec; none if
    /// there are no rules, or none matches.
    pub(crate) fn rule(&self, parameter: &str) -> Option<usize> {
        let Policy::Named(rules) = self else { return None };
        let codec = rules.iter().find(|rule| rule.matches(parameter))?.codec.to_string();
        rules.iter().position(|rule| rule.codec.to_string() == codec)
    }

    /// The codec of parameters with this rule; none with `auto`.
    pub(crate) fn of_rule(&self, rule: Option<usize>) -> Option<&Choice> {
        match self {
            Policy::Fixed(choice) => Some(choice),
            Policy::Auto(_) => None,
            Policy::Named(rules) => rules.get(rule?).map(|rule| &rule.codec),
        }
    }

    /// Whether any of its codecs leaves a residual, which feedback could do something with.
    pub fn leaves_a_residual(&self) -> bool {
        self.keeps_a_budget() || self.choices().any(leaves_residual)
    }

    /// The recommended number of steps of a warm-up ([`crate::Options::warm_up_steps`]): 20 for `powersgd`, 50 for
    /// codecs that send few elements (`topk`, `blocktopk`, `dgc`, `graddrop`), else 0. docs/numerics.md has the
    /// measurements.
    pub fn warm_up_steps(&self) -> u64 {
        let steps = |choice: &Choice| match choice {
            Choice::LowRank(_) => 20,
            choice if momentum::is_sparse(&choice.to_string()) => 50,
            _ => 0,
        };
        match self {
            Policy::Auto(_) => 0,
            named => named.choices().map(steps).max().unwrap_or(0),
        }
    }

    /// Warnings to print before a training of parameters with these names, a line each: codecs whose residuals
    /// would grow, and patterns that match no name.
    pub fn warnings(&self, names: &[&str]) -> Vec<String> {
        let rules: &[Rule] = if let Policy::Named(rules) = self { rules } else { &[] };
        let unmatched = rules.iter().filter(|rule| !names.iter().any(|name| rule.matches(name)));
        let examples = names[..names.len().min(NAMES_SHOWN)].join(", ");
        let of_rule = |rule: &Rule| {
            let pattern = &rule.pattern;
            format!(
                "codec {rule}: {pattern} matches no parameter; their names are such as {examples}"
            )
        };
        self.choices().filter_map(Choice::warning).chain(unmatched.map(of_rule)).collect()
    }

    /// Returns whether codecs must keep to an error budget: true of `auto` without names only.
    pub fn keeps_a_budget(&self) -> bool {
        matches!(self, Policy::Auto(among) if among.is_empty())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Fixed(choice) => choice.fmt(f),
            Policy::Auto(among) if among.is_empty() => f.write_str("auto"),
            Policy::Auto(among) => {
                let names: Vec<_> = among.iter().map(Choice::to_string).collect();
                write!(f, "auto:{}", names.join("+"))
            }
            Policy::Named(rules) => {
                let rules: Vec<_> = rules.iter().map(Rule::to_string).collect();
                f.write_str(&rules.join(","))
            }
        }
    }
}

/// A name that is neither a codec nor `auto`, `auto:CODEC+CODEC` or `PATTERN=CODEC,PATTERN=CODEC`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnknownPolicy {
    message: String,
    excerpt: Option<String>,
}

impl UnknownPolicy {
    /// The line of a codec's text that it is about, and below it a caret where it is.
    pub fn excerpt(&self) -> Option<&str> {
        self.excerpt.as_deref()
    }

    pub(crate) fn new(message: String) -> UnknownPolicy {
        UnknownPolicy { message, excerpt: None }
    }
}

impl From<thinwire_codec::Error> for UnknownPolicy {
    fn from(error: thinwire_codec::Error) -> UnknownPolicy {
        let excerpt = error.excerpt().map(str::to_owned);
        UnknownPolicy { message: error.to_string(), excerpt }
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        if name == "auto" {
            return Ok(Policy::Auto(Vec::new()));
        }
        let Some(names) = name.strip_prefix("auto:") else {
            return match Choice::parse(name) {
                Ok(choice) => Ok(Policy::Fixed(choice)),
                // The name of a file may have an equals sign, too.
                Err(_) if name.contains('=') => {
                    name.split(',').map(str::parse).collect::<Result<_, _>>().map(Policy::Named)
                }
                Err(error) if error.kind() == Kind::Unknown => {
                    Err(UnknownPolicy::new(format!("{error}, or auto")))
                }
                Err(error) => Err(error.into()),
            };
        };
        let bytes = |name: &str| match Choice::parse(name) {
            Ok(choice @ Choice::Bytes(_)) => Ok(choice),
            Ok(choice) => Err(UnknownPolicy::new(format!("auto does not choose {choice}"))),
            Err(error) => Err(error.into()),
        };
        separate(names).iter().map(|name| bytes(name)).collect::<Result<_, _>>().map(Policy::Auto)
    }
}

/// The names of codecs between plus signs. The name of a file may have some of its own: what is no
/// codec by itself may be one together with what follows.
fn separate(names: &str) -> Vec<String> {
    let parts: Vec<&str> = names.split('+').collect();
    let (mut found, mut first) = (Vec::new(), 0);
    while first < parts.len() {
        let is_codec = |end: &usize| match Choice::parse(&parts[first..*end].join("+")) {
            Ok(_) => true,
            Err(error) if *end == first + 1 => error.kind() != Kind::Unknown,
            Err(error) => !matches!(error.kind(), Kind::Unknown | Kind::File),
        };
        let end = (first + 1..=parts.len()).find(is_codec).unwrap_or(first + 1);
        found.push(parts[first..end].join("+"));
        first = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_may_have_plus_signs() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/codecs");
        let source = format!("{examples}/onebit.codec");
        let folder = std::env::temp_dir().join(format!("thinwire-policy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("a+b+c.codec").display().to_string();
        std::fs::copy(source, &file).unwrap();
        let names = format!("int8+{file}+topk:0.01");
        assert_eq!(separate(&names), ["int8", &file, "topk:0.01"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_holds_much_back_has_a_warm_up() {
        let of = |name: &str| name.parse::<Policy>().unwrap().warm_up_steps();
        assert_eq!(["powersgd:4", "powersgd:4:alternate"].map(of), [20; 2]);
        assert_eq!(["topk:0.01", "blocktopk:1/64", "dgc:0.01", "graddrop:0.1"].map(of), [50; 4]);
        for name in ["none", "bf16", "int8", "int4", "onebit", "dct:512", "auto", "auto:topk:0.01"]
        {
            assert_eq!(of(name), 0, "{name}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_gives_the_codec() {
        let policy: Policy = "head.*=none,*.weight=int8,*.embed=powersgd:4,*=int8".parse().unwrap();
        let codec = |name: &str| policy.of_rule(policy.rule(name)).unwrap().to_string();
        assert_eq!(codec("head.weight"), "none");
        assert_eq!(codec("up.weight"), "int8");
        assert_eq!(codec("tok.embed"), "powersgd:4");
        assert_eq!(policy.rule("up.bias"), policy.rule("up.weight"), "one codec, one rule");
        assert_eq!(policy.to_string().parse::<Policy>().unwrap().to_string(), policy.to_string());
        assert_eq!(policy.warm_up_steps(), 20);
        assert!(policy.leaves_a_residual());
        let some: Policy = "*.weight=int8".parse().unwrap();
        assert!(some.of_rule(some.rule("up.bias")).is_none());
        let error = "*.weight=int8,none".parse::<Policy>().unwrap_err().to_string();
        assert!(
            error.starts_with("'none' among codecs by name, expected PATTERN=CODEC"),
            "{error}"
        );
    }

    #[test]
    fn patterns_without_a_parameter_are_warned_of() {
        let warned = |policy: &str| {
            let policy: Policy = policy.parse().unwrap();
            policy.warnings(&["up.weight", "up.bias", "down.weight", "down.bias"])
        };
        let said = "codec *.wieght=int4: *.wieght matches no parameter; their names are such as \
                    up.weight, up.bias, down.weight";
        assert_eq!(warned("*.wieght=int4,*=int8"), [said]);
        // Another pattern may match all names before.
        for policy in ["*.weight=int4,*=int8", "*=int8,down.*=none", "int8"] {
            assert!(warned(policy).is_empty(), "{policy}");
        }
    }

    #[test]
    fn what_is_no_codec_stays_alone() {
        assert_eq!(separate("zip+int8"), ["zip", "int8"]);
        assert_eq!(separate("int8+"), ["int8", ""]);
        assert_eq!(separate("zip+gone.codec"), ["zip", "gone.codec"]);
        let error = "auto:zip+int8".parse::<Policy>().unwrap_err().to_string();
        assert!(error.starts_with("unknown codec 'zip', expected one of"), "{error}");
    }
}

//! The ways in which ranks train together, and their text.

use std::fmt;
use std::str::FromStr;

use thinwire_update::{MomentumOptions, Optimizer, Rule};

use super::timetable::Timetable;

/// Modes as a help text or an error lists them.
const EXPECTED: &str =
    "expected step, delayed:STEPS, local:EVERY, diloco:EVERY, sma:PULL or pair:EVERY";

/// Modes with rounds, as an error lists them.
const WITH_ROUNDS: &str = "expected local:EVERY, diloco:EVERY, sma:PULL or pair:EVERY";

/// The optimiser whose step adds the average as it is.
pub(super) const MEAN: Optimizer = Optimizer { rule: Rule::Sgd, learning_rate: 1.0 };

/// More fragments than any model needs; each has an exchange of its own.
const FRAGMENTS_MAX: u64 = 4096;

/// The way in which ranks train together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    /// Gradients are averaged in every step.
    #[default]
    Step,
    /// Gradients are averaged in every step, and applied some steps later.
    Delayed {
        /// Steps between a gradient and its update.
        steps: u64,
    },
    /// Parameters are averaged every few steps.
    Local {
        /// Steps from one round to the next.
        every: u64,
    },
    /// An outer optimiser follows the average progress of all ranks.
    DiLoCo(DiLoCo),
    /// Parameters are drawn towards their mean.
    Sma {
        /// The part of the distance to the mean by which a round draws parameters, above 0 and at most 1.
        pull: f32,
        /// Steps from one round to the next.
        every: u64,
    },
    /// Parameters are averaged with those of one other rank.
    Pair {
        /// Steps from one round to the next.
        every: u64,
    },
}

/// The settings of DiLoCo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiLoCo {
    /// Steps from one round of a fragment to its next.
    pub every: u64,
    /// The number of parts of the parameters that are exchanged in turn, at most `every`.
    pub fragments: u32,
    /// Steps from the beginning of a round to its end, at most `every`.
    pub delay: u64,
    /// Weight of a rank's own parameters, from 0 to below 1, in the weighted mean of its own and the
    /// common parameters with which it continues after a round.
    pub alpha: f32,
    /// The outer optimiser.
    pub outer: Optimizer,
}

impl DiLoCo {
    /// Returns DiLoCo with the outer optimiser of its paper: Nesterov's momentum of 0.9 at a learning
    /// rate of 0.7.
    pub fn new(every: u64) -> DiLoCo {
        let rule = Rule::Nesterov(MomentumOptions { factor: 0.9 });
        let outer = Optimizer { rule, learning_rate: 0.7 };
        DiLoCo { every, fragments: 1, delay: 0, alpha: 0.0, outer }
    }
}

impl Mode {
    /// Returns the timetable of rounds; `None` for modes that exchange gradients in every step.
    pub fn timetable(&self) -> Option<Timetable> {
        let (every, fragments, delay) = match *self {
            Mode::Step | Mode::Delayed { .. } => return None,
            Mode::Local { every } | Mode::Sma { every, .. } | Mode::Pair { every } => (every, 1, 0),
            Mode::DiLoCo(DiLoCo { every, fragments, delay, .. }) => (every, fragments, delay),
        };
        Some(Timetable { every, fragments, delay })
    }

    /// Reads a mode that has rounds.
    ///
    /// # Errors
    /// If the text is not such a mode.
    pub fn of_rounds(text: &str) -> Result<Mode, InvalidMode> {
        let mode = Mode::parse(text, WITH_ROUNDS)?;
        match mode.timetable() {
            Some(_) => Ok(mode),
            None => Err(InvalidMode(format!("mode {mode} has no rounds, {WITH_ROUNDS}"))),
        }
    }

    /// Reads a mode. The error for an unknown name ends with `expected`.
    fn parse(text: &str, expected: &str) -> Result<Mode, InvalidMode> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut settings = Settings::read(name, rest)?;
        let mode = match name {
            "step" if rest.is_empty() => Mode::Step,
            "delayed" => Mode::Delayed { steps: settings.first(0..=1024)? },
            "local" => Mode::Local { every: settings.first(1..=u64::MAX)? },
            "diloco" => Mode::DiLoCo(settings.diloco()?),
            "sma" => {
                let every = settings.take("every", 1..=u64::MAX)?.unwrap_or(1);
                Mode::Sma { pull: settings.pull()?, every }
            }
            "pair" if rest.is_empty() => Mode::Pair { every: 1 },
            "pair" => Mode::Pair { every: settings.first(1..=u64::MAX)? },
            _ => return Err(InvalidMode(format!("unknown mode '{text}', {expected}"))),
        };
        settings.end()?;
        Ok(mode)
    }

    /// Refuses settings that [`Mode::from_str`] would refuse in a text.
    ///
    /// # Errors
    /// The first such setting.
    pub fn check(&self) -> Result<(), InvalidMode> {
        self.to_string().parse::<Mode>().map(drop)
    }

    /// Returns the mode as DiLoCo with other settings; `None` for a mode without common parameters.
    pub(crate) fn as_diloco(&self) -> Option<DiLoCo> {
        match *self {
            Mode::Local { every } => Some(DiLoCo { outer: MEAN, ..DiLoCo::new(every) }),
            Mode::DiLoCo(settings) => Some(settings),
            Mode::Sma { pull, every } => {
                Some(DiLoCo { alpha: 1.0 - pull, outer: MEAN, ..DiLoCo::new(every) })
            }
            Mode::Step | Mode::Delayed { .. } | Mode::Pair { .. } => None,
        }
    }
}

impl fmt::Display for Mode {
    /// Writes the name and all settings, as [`Mode::from_str`] reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Step => f.write_str("step"),
            Mode::Delayed { steps } => write!(f, "delayed:{steps}"),
            Mode::Local { every } => write!(f, "local:{every}"),
            Mode::DiLoCo(DiLoCo { every, fragments, delay, alpha, outer }) => {
                let outer = outer.to_string().replacen(':', ",", 1);
                write!(
                    f,
                    "diloco:{every},fragments={fragments},delay={delay},alpha={alpha},outer={outer}"
                )
            }
            Mode::Sma { pull, every } => write!(f, "sma:{pull},every={every}"),
            Mode::Pair { every } => write!(f, "pair:{every}"),
        }
    }
}

/// A text that is not a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMode(String);

impl FromStr for Mode {
    type Err = InvalidMode;

    /// Reads a mode: its name, a colon, its number, and settings of the form `name=value` between commas.
    fn from_str(text: &str) -> Result<Mode, InvalidMode> {
        Mode::parse(text, EXPECTED)
    }
}

/// The part of a mode's text after its name, of which settings are taken.
struct Settings<'a> {
    mode: &'a str,
    first: &'a str,
    given: Vec<Setting<'a>>,
}

struct Setting<'a> {
    name: &'a str,
    value: &'a str,
}

impl<'a> Settings<'a> {
    fn read(mode: &'a str, text: &'a str) -> Result<Settings<'a>, InvalidMode> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let mut given: Vec<Setting<'a>> = Vec::new();
        for setting in rest.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if given.iter().any(|before| before.name == name) {
                return Err(InvalidMode(format!("mode {mode} has {name} twice")));
            }
            given.push(Setting { name, value });
        }
        Ok(Settings { mode, first, given })
    }

    /// Returns the number behind the colon.
    fn first(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, InvalidMode> {
        let number = self.first.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let Settings { mode, first, .. } = self;
            let least = range.start();
            InvalidMode(format!(
                "mode {mode} has '{first}' steps, expected a whole number from {least} as in {mode}:30"
            ))
        })
    }

    fn pull(&self) -> Result<f32, InvalidMode> {
        let pull = self.first.parse().ok().filter(|pull| *pull > 0.0 && *pull <= 1.0);
        pull.ok_or_else(|| {
            let first = self.first;
            InvalidMode(format!(
                "mode sma has a pull of '{first}', expected a number above 0 and at most 1 as in sma:0.1"
            ))
        })
    }

    fn remove(&mut self, name: &str) -> Option<&'a str> {
        let at = self.given.iter().position(|setting| setting.name == name)?;
        Some(self.given.remove(at).value)
    }

    /// Takes a whole number by its name, if it is given.
    fn take(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, InvalidMode> {
        let Some(value) = self.remove(name) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (mode, least, most) = (self.mode, range.start(), range.end());
            let bound = if *most == u64::MAX { String::new() } else { format!(" to {most}") };
            InvalidMode(format!(
                "{name} of mode {mode} is '{value}', expected a whole number from {least}{bound}"
            ))
        })
    }

    fn diloco(&mut self) -> Result<DiLoCo, InvalidMode> {
        let usual = DiLoCo::new(self.first(1..=u64::MAX)?);
        let every = usual.every;
        let most = every.min(FRAGMENTS_MAX);
        let fragments = self.take("fragments", 1..=most)?.unwrap_or(1) as u32;
        let delay = self.take("delay", 0..=every)?.unwrap_or(0);
        let alpha = match self.remove("alpha") {
            // Streaming DiLoCo gives the steps that a rank has taken since the round began half of the weight.
            None => {
                if delay > 0 {
                    0.5
                } else {
                    0.0
                }
            }
            Some(text) => {
                let alpha = text.parse().ok().filter(|alpha| (0.0..1.0).contains(alpha));
                alpha.ok_or_else(|| {
                    InvalidMode(format!(
                        "alpha of mode diloco is '{text}', expected a number from 0 to below 1"
                    ))
                })?
            }
        };
        let outer = self.outer(usual.outer)?;
        Ok(DiLoCo { every, fragments, delay, alpha, outer })
    }

    /// Takes the outer optimiser: a rule, and settings that the mode does not have itself.
    fn outer(&mut self, usual: Optimizer) -> Result<Optimizer, InvalidMode> {
        let rule = self.remove("outer");
        let given = std::mem::take(&mut self.given);
        let text: Vec<_> =
            given.iter().map(|Setting { name, value }| format!("{name}={value}")).collect();
        let text = match rule {
            Some(rule) => format!("{rule}:{}", text.join(",")),
            None => {
                let usual = usual.to_string();
                let (rule, settings) = usual.split_once(':').expect("it has a learning rate");
                let is_given = |setting: &&str| {
                    given.iter().any(|it| setting.split('=').next() == Some(it.name))
                };
                let kept = settings.split(',').filter(|setting| !is_given(setting));
                let all: Vec<_> = kept.map(str::to_owned).chain(text).collect();
                format!("{rule}:{}", all.join(","))
            }
        };
        Optimizer::parse(&text)
            .map_err(|error| InvalidMode(format!("outer optimiser of mode diloco: {error}")))
    }

    /// Refuses settings that were not taken.
    fn end(self) -> Result<(), InvalidMode> {
        let Settings { mode, given, .. } = self;
        given.first().map_or(Ok(()), |Setting { name, .. }| {
            Err(InvalidMode(format!("mode {mode} has no setting {name}")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<Mode>().unwrap_err().to_string()
    }

    #[test]
    fn a_text_that_is_shown_reads_the_same() {
        let modes = [
            "step",
            "delayed:2",
            "local:8",
            "diloco:30,fragments=4,delay=5,alpha=0.5,outer=nesterov,lr=0.7,factor=0.9",
            "sma:0.1,every=2",
            "pair:3",
        ];
        for text in modes {
            assert_eq!(text.parse::<Mode>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn settings_that_are_not_given_are_as_usual() {
        let diloco = |text: &str| match text.parse().unwrap() {
            Mode::DiLoCo(settings) => settings,
            other => panic!("{other}"),
        };
        assert_eq!(diloco("diloco:30"), DiLoCo::new(30));
        assert_eq!(diloco("diloco:30,delay=5").alpha, 0.5);
        let outer = diloco("diloco:30,lr=0.4").outer;
        assert_eq!(outer, Optimizer { learning_rate: 0.4, ..DiLoCo::new(30).outer });
        let outer = diloco("diloco:30,outer=sgd,lr=1").outer;
        assert_eq!(outer, Optimizer { rule: Rule::Sgd, learning_rate: 1.0 });
        assert_eq!("sma:0.5".parse(), Ok(Mode::Sma { pull: 0.5, every: 1 }));
        assert_eq!("pair".parse(), Ok(Mode::Pair { every: 1 }));
    }

    #[test]
    fn refusals_name_both_values() {
        assert_eq!(refusal("steps"), format!("unknown mode 'steps', {EXPECTED}"));
        assert_eq!(refusal("step:2"), format!("unknown mode 'step:2', {EXPECTED}"));
        let of_rounds = |text: &str| Mode::of_rounds(text).unwrap_err().to_string();
        assert_eq!(of_rounds("steps"), format!("unknown mode 'steps', {WITH_ROUNDS}"));
        assert_eq!(of_rounds("delayed:2"), format!("mode delayed:2 has no rounds, {WITH_ROUNDS}"));
        let steps = "steps, expected a whole number from";
        assert_eq!(refusal("local"), format!("mode local has '' {steps} 1 as in local:30"));
        assert_eq!(
            refusal("delayed:-1"),
            format!("mode delayed has '-1' {steps} 0 as in delayed:30")
        );
        assert_eq!(
            refusal("diloco:4,fragments=5"),
            "fragments of mode diloco is '5', expected a whole number from 1 to 4"
        );
        assert_eq!(
            refusal("diloco:4,beta=5"),
            "outer optimiser of mode diloco: nesterov has no setting beta, expected lr, factor"
        );
        assert_eq!(
            refusal("diloco:2,delay=3"),
            "delay of mode diloco is '3', expected a whole number from 0 to 2"
        );
        assert_eq!(refusal("local:2,delay=3"), "mode local has no setting delay");
        assert_eq!(refusal("pair:2,delay=1"), "mode pair has no setting delay");
        assert_eq!(refusal("diloco:2,delay=1,delay=1"), "mode diloco has delay twice");
        assert_eq!(
            refusal("sma:2"),
            "mode sma has a pull of '2', expected a number above 0 and at most 1 as in sma:0.1"
        );
        assert_eq!(
            refusal("diloco:2,alpha=1"),
            "alpha of mode diloco is '1', expected a number from 0 to below 1"
        );
    }
}

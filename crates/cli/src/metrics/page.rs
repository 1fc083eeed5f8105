//! Page of metrics, and its text in Prometheus's format, version 0.0.4.
//!
//! Law: each sample is one line, from which all label values can be read back.

use std::fmt::{self, Display, Formatter};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Number that only grows during the life of the process.
    Counter,
    /// Number that may also fall.
    Gauge,
    /// Counts of events by a whole number.
    Histogram,
}

/// Value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Value of a counter or gauge.
    Number(f64),
    /// Counts of events with the values 0, 1, and so on. The last count includes all larger values.
    Counts(Vec<u64>),
}

/// Value of a metric, with labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Names and values of the labels.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: Value,
}

/// Metric with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name of the metric.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// Description in one line.
    pub help: &'static str,
    /// Samples, which differ in their labels.
    pub samples: Vec<Sample>,
}

/// Page of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page(Vec<Family>);

impl Page {
    /// Starts a metric, to which later samples are added.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.0.push(Family { name, kind, help, samples: Vec::new() });
    }

    /// Adds a sample to the last metric.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.add(labels, Value::Number(value));
    }

    /// Adds a metric with a single sample.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &'static str, value: f64) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    /// Adds a histogram of whole numbers from 0 on to the last metric, given the count of each value. The
    /// count of value `most` includes all larger values.
    pub fn counts(&mut self, labels: &[(&str, &str)], counts: &[u64], most: usize) {
        let mut kept: Vec<u64> = (0..most).map(|at| counts.get(at).copied().unwrap_or(0)).collect();
        kept.push(counts.iter().skip(most).sum());
        self.add(labels, Value::Counts(kept));
    }

    fn add(&mut self, labels: &[(&str, &str)], value: Value) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let labels = labels.collect();
        let family = self.0.last_mut().expect("a metric is started before its samples");
        family.samples.push(Sample { labels, value });
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| write!(f, "{family}"))
    }
}

impl Display for Family {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let name = self.name;
        writeln!(f, "# HELP {name} {}\n# TYPE {name} {kind}", self.help)?;
        for Sample { labels, value } in &self.samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            match value {
                Value::Number(value) => line(f, name, &labels, *value)?,
                Value::Counts(counts) => histogram(f, name, labels, counts)?,
            }
        }
        Ok(())
    }
}

/// Writes a histogram as cumulative counts by upper bounds, the sum of the values and the number of events.
fn histogram(
    f: &mut Formatter<'_>,
    name: &str,
    labels: Vec<String>,
    counts: &[u64],
) -> fmt::Result {
    let (mut sum, mut total) = (0, 0);
    for (value, count) in counts.iter().enumerate() {
        (sum, total) = (sum + value as u64 * count, total + count);
        let is_last = value + 1 == counts.len();
        let bound = if is_last { "+Inf".to_owned() } else { value.to_string() };
        let labels = [&labels[..], &[format!("le=\"{bound}\"")]].concat();
        line(f, &format!("{name}_bucket"), &labels, total as f64)?;
    }
    line(f, &format!("{name}_sum"), &labels, sum as f64)?;
    line(f, &format!("{name}_count"), &labels, total as f64)
}

fn line(f: &mut Formatter<'_>, name: &str, labels: &[String], value: f64) -> fmt::Result {
    match labels.is_empty() {
        true => writeln!(f, "{name} {}", Number(value)),
        false => writeln!(f, "{name}{{{}}} {}", labels.join(","), Number(value)),
    }
}

/// Number in the notation of the text format.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value == f64::INFINITY => f.write_str("+Inf"),
            value if value == f64::NEG_INFINITY => f.write_str("-Inf"),
            value if value.is_nan() => f.write_str("NaN"),
            value => write!(f, "{value}"),
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the value of the only label on a line.
    fn label(line: &str) -> Option<String> {
        let mut letters = line.strip_prefix("name{label=\"")?.strip_suffix("\"} 1")?.chars();
        let mut value = String::new();
        while let Some(letter) = letters.next() {
            value.push(match letter {
                '\\' => match letters.next()? {
                    'n' => '\n',
                    letter => letter,
                },
                '"' => return None,
                letter => letter,
            });
        }
        Some(value)
    }

    proptest! {
        #[test]
        fn a_label_is_read_back_from_one_line(value in "[a\\\\\"\n ,}é]*") {
            let mut page = Page::default();
            page.family("name", Kind::Gauge, "help");
            page.sample(&[("label", &value)], 1.0);
            let text = page.to_string();
            let lines: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines.len(), 3);
            prop_assert_eq!(label(lines[2]), Some(value));
        }

        #[test]
        fn a_histogram_ends_with_the_number_of_events(
            counts in prop::collection::vec(0_u64..9, 0..8), most in 1_usize..6
        ) {
            let mut page = Page::default();
            page.family("steps", Kind::Histogram, "help");
            page.counts(&[("of", "x")], &counts, most);
            let text = page.to_string();
            let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            let buckets: Vec<u64> =
                text.lines().filter(|line| line.starts_with("steps_bucket")).map(value).collect();
            prop_assert_eq!(buckets.len(), most + 1);
            prop_assert!(buckets.is_sorted());
            let count: u64 = counts.iter().sum();
            prop_assert_eq!((buckets[most], value(text.lines().last().unwrap())), (count, count));
        }
    }

    #[test]
    fn a_page_is_the_text_of_the_format() {
        let mut page = Page::default();
        page.single("thinwire_loss", Kind::Gauge, "Loss.", 2.5);
        page.family("thinwire_bytes_total", Kind::Counter, "Bytes.");
        page.sample(&[("to", "a"), ("by", "b")], f64::NAN);
        let expected = "# HELP thinwire_loss Loss.\n# TYPE thinwire_loss gauge\nthinwire_loss 2.5\n\
                        # HELP thinwire_bytes_total Bytes.\n# TYPE thinwire_bytes_total counter\n\
                        thinwire_bytes_total{to=\"a\",by=\"b\"} NaN\n";
        assert_eq!(page.to_string(), expected);
    }
}

//! Page of metrics in the text format of Prometheus, version 0.0.4.
//!
//! Law: each sample is one line, from which any label values can be read back.

use std::fmt::{self, Display, Write};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Number that only grows during the life of the process.
    Counter,
    /// Number that may also fall.
    Gauge,
    /// Numbers of events, cumulated by upper bounds of a value.
    Histogram,
}

/// Page of metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page(String);

impl Page {
    /// Starts a metric; its samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// Adds a sample of the current metric.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {}", Number(value))),
            false => self.line(format_args!("{name}{{{}}} {}", labels.join(","), Number(value))),
        }
    }

    /// Adds a metric with a single sample.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a histogram of whole numbers from 0, given the number of events with each value. The count of
    /// value `most` includes all larger values.
    pub fn counts(&mut self, name: &str, (label, of): (&str, &str), counts: &[u64], most: usize) {
        let (bucket, mut sum, mut total) = (format!("{name}_bucket"), 0, 0);
        for value in 0..most {
            let count = counts.get(value).copied().unwrap_or(0);
            (sum, total) = (sum + value as u64 * count, total + count);
            self.sample(&bucket, &[(label, of), ("le", &value.to_string())], total as f64);
        }
        let above: u64 = counts.iter().skip(most).sum();
        (sum, total) = (sum + most as u64 * above, total + above);
        self.sample(&bucket, &[(label, of), ("le", "+Inf")], total as f64);
        self.sample(&format!("{name}_sum"), &[(label, of)], sum as f64);
        self.sample(&format!("{name}_count"), &[(label, of)], total as f64);
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a string takes everything");
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Number in the notation of the text format.
struct Number(f64);

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Returns the value of the only label in a line.
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
            page.sample("name", &[("label", &value)], 1.0);
            let text = page.to_string();
            let line = text.strip_suffix('\n').unwrap();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(label(line), Some(value));
        }

        #[test]
        fn a_histogram_ends_with_the_number_of_events(
            counts in prop::collection::vec(0_u64..9, 0..8), most in 1_usize..6
        ) {
            let mut page = Page::default();
            page.counts("steps", ("of", "x"), &counts, most);
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
        page.sample("thinwire_bytes_total", &[("to", "a"), ("by", "b")], f64::NAN);
        let expected = "# HELP thinwire_loss Loss.\n# TYPE thinwire_loss gauge\nthinwire_loss 2.5\n\
                        # HELP thinwire_bytes_total Bytes.\n# TYPE thinwire_bytes_total counter\n\
                        thinwire_bytes_total{to=\"a\",by=\"b\"} NaN\n";
        assert_eq!(page.to_string(), expected);
    }
}

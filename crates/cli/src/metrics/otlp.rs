//! Export of metrics to a collector of OpenTelemetry: OTLP over HTTP, in its JSON encoding.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>. Metrics keep their names of Prometheus. A process is
//! the resource `service.name` = `thinwire` with `service.instance.id` = `HOST-PID`.
//!
//! Law: whatever the collector answers or does not answer, the process goes on, and a failure is said once
//! until the collector takes metrics again.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use serde_json::{Value as Json, json};

use super::page::{Family, Kind, Page, Sample, Value};
use crate::output::say;

/// Interval between two exports.
const INTERVAL: Duration = Duration::from_secs(10);
/// Longest time of one export in seconds.
const TIMEOUT_S: u64 = 2;
/// Most bytes of an answer's headers, and of its status line.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Path of metrics below the address of a collector.
const PATH: &str = "/v1/metrics";
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`: counters count from the start of the process.
const CUMULATIVE: u32 = 2;

/// Address of a collector, such as `http://127.0.0.1:4318`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(String);

impl Collector {
    /// Reads the address of a collector.
    ///
    /// # Errors
    /// If it does not begin with `http://`, or has no host.
    pub fn parse(text: &str) -> Result<Collector> {
        let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        match host {
            Some(host) if !host.is_empty() && !host.contains(char::is_whitespace) => {
                let host = host.trim_end_matches(PATH);
                Ok(Collector(format!("http://{host}{PATH}")))
            }
            _ => Err(anyhow!("expected http://HOST:PORT, such as http://127.0.0.1:4318")),
        }
    }
}

/// Thread that exports a page regularly, and once more when the exporter is dropped.
#[derive(Debug)]
pub struct Exporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        collector: Collector,
        page: impl Fn() -> Page + Send + 'static,
    ) -> Result<Exporter> {
        let (stop, stopped) = channel();
        let started = nanoseconds();
        let export = move || {
            let mut is_taken = true;
            loop {
                let is_last = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let sent = send(&collector, &request(&page(), started, nanoseconds()));
                if let (true, Err(why)) = (is_taken, &sent) {
                    say(format!("cannot export metrics to {}: {why}", collector.0));
                }
                is_taken = sent.is_ok();
                if is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("thinwire otlp".to_owned()).spawn(export)?;
        Ok(Exporter { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.take();
        // A thread that has panicked has said so.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn send(collector: &Collector, request: &Json) -> Result<(), String> {
    let sent = minreq::post(&collector.0)
        .with_header("Content-Type", "application/json")
        .with_body(request.to_string())
        .with_timeout(TIMEOUT_S)
        .with_follow_redirects(false)
        .with_max_headers_size(ANSWER_BYTES_MAX)
        .with_max_status_line_length(ANSWER_BYTES_MAX)
        .send_lazy();
    match sent {
        Ok(answer) if (200..300).contains(&answer.status_code) => Ok(()),
        Ok(answer) => Err(format!("it answers {}", answer.status_code)),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the body of a request, an `ExportMetricsServiceRequest`; times are nanoseconds since 1970.
fn request(page: &Page, started: u128, now: u128) -> Json {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let instance = format!("{host}-{}", std::process::id());
    let metrics: Vec<Json> =
        page.families().iter().map(|family| metric(family, started, now)).collect();
    let scope = json!({ "name": "thinwire", "version": env!("CARGO_PKG_VERSION") });
    let resource = attributes(&[
        ("service.name".to_owned(), "thinwire".to_owned()),
        ("service.instance.id".to_owned(), instance),
    ]);
    json!({ "resourceMetrics": [{
        "resource": { "attributes": resource },
        "scopeMetrics": [{ "scope": scope, "metrics": metrics }],
    }] })
}

fn metric(family: &Family, started: u128, now: u128) -> Json {
    let points: Vec<Json> =
        family.samples.iter().map(|sample| point(sample, started, now)).collect();
    let (kind, data) = match family.kind {
        Kind::Gauge => ("gauge", json!({ "dataPoints": points })),
        Kind::Counter => (
            "sum",
            json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points }),
        ),
        Kind::Histogram => {
            ("histogram", json!({ "aggregationTemporality": CUMULATIVE, "dataPoints": points }))
        }
    };
    json!({ "name": family.name, "description": family.help, kind: data })
}

/// Returns a data point. Integers of 64 bits are strings in this encoding, as are numbers that JSON lacks.
fn point(sample: &Sample, started: u128, now: u128) -> Json {
    let mut point = json!({
        "attributes": attributes(&sample.labels),
        "startTimeUnixNano": started.to_string(),
        "timeUnixNano": now.to_string(),
    });
    match &sample.value {
        Value::Number(value) => point["asDouble"] = double(*value),
        Value::Counts(counts) => {
            let sum: u64 = counts.iter().enumerate().map(|(at, count)| at as u64 * count).sum();
            let counted: Vec<String> = counts.iter().map(u64::to_string).collect();
            let bounds: Vec<usize> = (0..counts.len().saturating_sub(1)).collect();
            point["count"] = counts.iter().sum::<u64>().to_string().into();
            point["sum"] = double(sum as f64);
            point["bucketCounts"] = counted.into();
            point["explicitBounds"] = bounds.into();
        }
    }
    point
}

fn double(value: f64) -> Json {
    match value {
        _ if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => value.into(),
    }
}

fn attributes(labels: &[(String, String)]) -> Vec<Json> {
    let attribute = |(name, value): &(String, String)| json!({ "key": name, "value": { "stringValue": value } });
    labels.iter().map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn page() -> Page {
        let mut page = Page::default();
        page.single("thinwire_loss", Kind::Gauge, "Loss.", f64::NAN);
        page.single("thinwire_bytes_total", Kind::Counter, "Bytes.", 7.0);
        page.family("thinwire_steps", Kind::Histogram, "Steps.");
        page.counts(("worker", "a"), &[4, 0, 2, 1], 2);
        page
    }

    #[test]
    fn a_request_is_the_json_of_the_specification() {
        let request = request(&page(), 5, 9);
        let resource = &request["resourceMetrics"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "thinwire");
        let metrics = &resource["scopeMetrics"][0]["metrics"];
        let times = json!({ "attributes": [], "startTimeUnixNano": "5", "timeUnixNano": "9" });
        let with = |name: &str, value: Json| {
            let mut point = times.clone();
            point[name] = value;
            point
        };
        let loss = json!({ "name": "thinwire_loss", "description": "Loss.",
            "gauge": { "dataPoints": [with("asDouble", "NaN".into())] } });
        assert_eq!(metrics[0], loss);
        let bytes = json!({ "name": "thinwire_bytes_total", "description": "Bytes.", "sum": {
            "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": [with("asDouble", 7.0.into())] } });
        assert_eq!(metrics[1], bytes);
        let steps = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!(
            steps["attributes"],
            json!([{ "key": "worker", "value": { "stringValue": "a" } }])
        );
        assert_eq!((&steps["count"], &steps["sum"]), (&json!("7"), &json!(6.0)));
        assert_eq!(steps["bucketCounts"], json!(["4", "0", "3"]));
        assert_eq!(steps["explicitBounds"], json!([0, 1]));
    }

    #[test]
    fn the_last_figures_are_sent_when_the_process_ends() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = format!("http://{}/", listener.local_addr().unwrap());
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap() > 2 {
                let lower = line.to_lowercase();
                let found =
                    lower.strip_prefix("content-length: ").map(|it| it.trim().parse().unwrap());
                length = found.unwrap_or(length);
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            body
        });
        drop(Exporter::start(Collector::parse(&address).unwrap(), page).unwrap());
        let body: Json = serde_json::from_slice(&answering.join().unwrap()).unwrap();
        let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        assert_eq!(metrics[1]["sum"]["dataPoints"][0]["asDouble"], 7.0);
    }

    #[test]
    fn an_address_names_a_collector() {
        for text in ["http://a:1", "http://a:1/", "http://a:1/v1/metrics"] {
            assert_eq!(Collector::parse(text).unwrap().0, "http://a:1/v1/metrics");
        }
        for text in ["", "a:1", "https://a:1", "http://", "http:// a"] {
            assert!(Collector::parse(text).is_err(), "{text}");
        }
    }
}

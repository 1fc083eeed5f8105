//! Metrics of a coordinator, derived from its events.

use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use thinwire_job::elastic::Event;

use super::page::{Kind, Page};

/// Roles, each with the event that begins its epochs and the event's field for the number of members.
const ROLES: [(&str, &str, &str); 2] =
    [("rank", "started", "ranks"), ("server", "servers_started", "servers")];

/// Last epoch of a role.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    members: u64,
    epoch: u64,
    /// Time at which the epoch began, in seconds since 1970; 0 before the first epoch.
    changed_s: f64,
}

/// Metrics of a coordinator.
#[derive(Clone, Debug, Default)]
pub struct CoordinatorMetrics(Arc<Mutex<[Side; 2]>>);

impl CoordinatorMetrics {
    /// Updates the metrics with an event.
    pub fn note(&self, event: &Event) {
        let mut sides = self.0.lock().expect("no holder panics");
        for (side, (_, name, members)) in sides.iter_mut().zip(ROLES) {
            if event.json["event"] == name {
                let number = |field: &str| event.json[field].as_u64().unwrap_or(0);
                let changed = event.time.duration_since(UNIX_EPOCH).unwrap_or_default();
                *side = Side {
                    members: number(members),
                    epoch: number("epoch"),
                    changed_s: changed.as_secs_f64(),
                };
            }
        }
    }

    /// Returns the page of metrics.
    pub fn page(&self) -> Page {
        let sides = *self.0.lock().expect("no holder panics");
        let mut page = Page::default();
        let mut family = |name, help, value: fn(&Side) -> f64| {
            page.family(name, Kind::Gauge, help);
            for (side, (role, ..)) in sides.iter().zip(ROLES) {
                page.sample(&[("role", role)], value(side));
            }
        };
        family("thinwire_coordinator_members", "Members of the last epoch.", |it| {
            it.members as f64
        });
        family("thinwire_coordinator_epoch", "Number of the last epoch.", |it| it.epoch as f64);
        let help = "Time at which the last epoch began, in seconds since 1970.";
        family("thinwire_coordinator_change_timestamp_seconds", help, |it| it.changed_s);
        page
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_epoch_replaces_the_one_before_of_its_role() {
        let metrics = CoordinatorMetrics::default();
        let tell = |seconds, json| {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            metrics.note(&Event { time, text: String::new(), json });
        };
        tell(5, json!({ "event": "started", "epoch": 1, "ranks": 2 }));
        tell(6, json!({ "event": "servers_started", "epoch": 4, "servers": 3 }));
        tell(7, json!({ "event": "started", "epoch": 2, "ranks": 1 }));
        tell(8, json!({ "event": "waiting" }));
        let text = metrics.page().to_string();
        for line in [
            "thinwire_coordinator_members{role=\"rank\"} 1",
            "thinwire_coordinator_members{role=\"server\"} 3",
            "thinwire_coordinator_epoch{role=\"rank\"} 2",
            "thinwire_coordinator_change_timestamp_seconds{role=\"rank\"} 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}

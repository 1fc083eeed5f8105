//! Metrics of a parameter server.

use thinwire_server::{STALENESS_MAX, Server, Stats};

use super::page::{Kind, Page};

/// Returns the page of a server. The page is empty before the server has started and after it has ended.
pub fn server_page(server: Option<&Server>) -> Page {
    server.map_or_else(Page::default, |server| page(&server.stats(), server.epoch()))
}

/// Returns the page for a server with these figures, in an epoch.
pub(super) fn page(figures: &Stats, epoch: u32) -> Page {
    let mut page = Page::default();
    page.family("thinwire_server_shards", Kind::Gauge, "Shards of which the server has a copy.");
    let backups = figures.copies.saturating_sub(figures.primaries);
    page.sample(&[("role", "primary")], figures.primaries as f64);
    page.sample(&[("role", "backup")], backups as f64);
    let gauges = [
        ("thinwire_server_epoch", "Number of the servers' epoch.", u64::from(epoch)),
        ("thinwire_server_rows", "Rows that were written, in all copies of shards.", figures.rows),
        (
            "thinwire_server_memory_bytes",
            "Bytes of memory that the rows of all copies take.",
            figures.bytes,
        ),
        ("thinwire_server_disk_bytes", "Bytes of rows that are only on disk.", figures.spilled),
    ];
    for (name, help, value) in gauges {
        page.single(name, Kind::Gauge, help, value as f64);
    }
    let counters = [
        ("thinwire_server_pushes_total", "Pushes that were acknowledged.", figures.pushes),
        ("thinwire_server_pulls_total", "Pulls that were answered.", figures.pulls),
        (
            "thinwire_server_updates_total",
            "Updates that were applied, over all copies.",
            figures.updates,
        ),
    ];
    for (name, help, value) in counters {
        page.single(name, Kind::Counter, help, value as f64);
    }
    page.family(
        "thinwire_server_staleness_steps",
        Kind::Histogram,
        "Steps that a worker was ahead of the slowest when its pull was answered.",
    );
    for (worker, counts) in &figures.staleness {
        page.counts(&[("worker", worker)], counts, STALENESS_MAX);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_are_the_copies_that_are_no_primaries() {
        let figures = Stats {
            primaries: 3,
            copies: 5,
            pushes: 7,
            staleness: [("00aa".to_owned(), vec![4, 0, 2])].into(),
            ..Stats::default()
        };
        let text = page(&figures, 2).to_string();
        for line in [
            "thinwire_server_shards{role=\"primary\"} 3",
            "thinwire_server_shards{role=\"backup\"} 2",
            "thinwire_server_epoch 2",
            "thinwire_server_pushes_total 7",
            "thinwire_server_staleness_steps_bucket{worker=\"00aa\",le=\"0\"} 4",
            "thinwire_server_staleness_steps_bucket{worker=\"00aa\",le=\"2\"} 6",
            "thinwire_server_staleness_steps_sum{worker=\"00aa\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}

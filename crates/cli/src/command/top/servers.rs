//! Servers of a job as a table.

use thinwire_report::Table;
use thinwire_report::figures::{bytes, count, digits};
use thinwire_server::Stats;

use super::screen::{ID, place};
use super::state::{Process, ServerFigures, Servers};

const LEGEND: [&str; 2] = [
    "shards: as primary, of all copies; rows and memory: of all copies",
    "ahead: steps ahead of the slowest worker, mean and most",
];

/// Position of the column of rows that are only on disk, if there are any.
const ON_DISK: usize = 5;

/// Returns the lines about the servers.
pub fn lines(servers: &Servers) -> Vec<String> {
    let there = servers.members.iter().filter(|process| process.standing != "lost").count();
    let epoch = match servers.epoch {
        0 => "no epoch of servers yet".to_owned(),
        number => format!("epoch {number} of servers"),
    };
    let waiting = servers.waiting.iter().map(|reason| format!("waiting for servers: {reason}"));
    let mut lines = vec![format!("{epoch}: {there} there")];
    lines.extend(waiting);
    lines.extend(away(servers));
    let spills = servers.processes().any(|process| process.figures.figures.spilled > 0);
    let with_disk = |cells: [String; 8], disk: String| {
        let mut cells = cells.to_vec();
        if spills {
            cells.insert(ON_DISK, disk);
        }
        cells
    };
    let header = ["server", "host:pid", "shards", "rows", "memory", "pushes", "pulls", "ahead"];
    let mut table = Table::new(with_disk(header.map(str::to_owned), "on disk".to_owned()));
    for process in servers.processes() {
        table.row(with_disk(row(process), bytes(process.figures.figures.spilled as f64)));
    }
    if servers.processes().next().is_some() {
        lines.extend(table.to_string().lines().map(str::to_owned));
        lines.extend(LEGEND.map(str::to_owned));
    }
    lines
}

/// Returns a line about the shards that have no server at present, and a line about the shards that are
/// lost.
fn away(servers: &Servers) -> impl Iterator<Item = String> {
    let Servers { shards, silent, lost, .. } = *servers;
    let silent = (silent > 0).then(|| {
        format!("waiting for servers: {silent} of {shards} shards have only silent servers")
    });
    let lost = (lost > 0).then(|| {
        format!("{lost} of {shards} shards are lost: continue from a snapshot (--restore)")
    });
    silent.into_iter().chain(lost)
}

fn row(process: &Process<ServerFigures>) -> [String; 8] {
    let ServerFigures { host, pid, figures } = &process.figures;
    let shards = match process.standing.as_str() {
        "running" | "halted" => format!("{} of {}", figures.primaries, figures.copies),
        "newcomer" => "joining".to_owned(),
        standing => standing.to_owned(),
    };
    [
        process.id.chars().take(ID).collect(),
        place(host.as_ref(), *pid),
        shards,
        count(figures.rows),
        bytes(figures.bytes as f64),
        count(figures.pushes),
        count(figures.pulls),
        ahead(figures),
    ]
}

/// Returns the mean and the highest staleness of all answers.
fn ahead(figures: &Stats) -> String {
    let all = || figures.staleness.values().flat_map(|counts| (0_u64..).zip(counts));
    let answers: u64 = all().map(|(_, count)| count).sum();
    let steps: u64 = all().map(|(steps, count)| steps * count).sum();
    let most = all().filter(|(_, count)| **count > 0).map(|(steps, _)| steps).max();
    match most {
        Some(most) => format!("{}, {most}", digits(steps as f64 / answers as f64)),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::state::State;
    use super::*;

    #[test]
    fn rows_on_disk_have_a_column_if_there_are_any() {
        let shown = |spilled: u64| {
            let figures = json!({ "bytes": 98_700_000, "spilled": spilled, "pushes": 700_000 });
            let member =
                json!({ "id": "8000000000000abc", "standing": "running", "figures": figures });
            let servers = json!({ "epoch": 3, "members": [member], "newcomers": [] });
            lines(&State::of(json!({ "epoch": 1, "servers": servers })).unwrap().servers.unwrap())
        };
        let [_, header, line, _, _] = &shown(1_230_000_000)[..] else { panic!("two rows") };
        assert!(header.contains("memory  on disk"), "{header}");
        assert!(line.contains("98.7 MB  1.23 GB  "), "{line}");
        assert!(!shown(0)[1].contains("on disk"));
    }

    #[test]
    fn ranks_wait_for_shards_without_a_server() {
        let shown = |silent: u32, lost: u32, server: &str| {
            let rank = json!({ "id": "0000000000000abc", "rank": 0, "standing": "running" });
            let server = json!({ "id": "8000000000000abc", "rank": 0, "standing": server });
            let servers = json!({ "epoch": 3, "members": [server], "newcomers": [], "shards": 8,
                                  "silent": silent, "lost": lost });
            let state = json!({ "epoch": 1, "members": [rank], "servers": servers });
            let state = State::of(state).unwrap();
            let standing = state.state_of(&state.members[0]).to_owned();
            (standing, lines(&state.servers.unwrap())[1].clone())
        };
        assert_eq!(shown(0, 0, "running").0, "running");
        assert_eq!(shown(0, 0, "lost").0, "waiting");
        let silent = "waiting for servers: 2 of 8 shards have only silent servers".to_owned();
        assert_eq!(shown(2, 0, "running"), ("waiting".to_owned(), silent));
        let lost = "3 of 8 shards are lost: continue from a snapshot (--restore)".to_owned();
        assert_eq!(shown(0, 3, "running"), ("waiting".to_owned(), lost));
    }

    #[test]
    fn servers_have_a_line_each() {
        let member = json!({
            "id": "8000000000000abc", "rank": 0, "standing": "running", "figures": {
                "host": "node7", "pid": 12_345, "primaries": 8, "copies": 16, "rows": 1_234_567,
                "bytes": 98_700_000, "updates": 3, "pushes": 700_000, "pulls": 1_700_000,
                "staleness": { "1": [3, 0, 0], "2": [0, 0, 1] },
            },
        });
        let lost = json!({ "id": "8000000000000def", "rank": 1, "standing": "lost" });
        let servers = json!({ "epoch": 3, "members": [member, lost], "newcomers": [] });
        let state = State::of(json!({ "epoch": 1, "servers": servers })).unwrap();
        let lines = lines(&state.servers.unwrap());
        assert_eq!(lines[0], "epoch 3 of servers: 1 there");
        let words: Vec<&str> = lines[2].split("  ").filter(|word| !word.is_empty()).collect();
        let words: Vec<&str> = words.iter().map(|word| word.trim()).collect();
        assert_eq!(words[..3], ["80000000", "node7:12345", "8 of 16"]);
        assert_eq!(words[4..], ["98.7 MB", "700\u{2009}000", "1\u{2009}700\u{2009}000", "0.50, 2"]);
        assert!(lines[3].contains("lost") && lines[3].ends_with('-'), "{lines:#?}");
        assert!(lines[..4].iter().all(|line| line.chars().count() <= 90), "{lines:#?}");
    }
}

//! State of a job as one screen.

use thinwire_report::Table;
use thinwire_report::escaping;
use thinwire_report::figures::{bytes, count, digits, percent, ratio, seconds};
use thinwire_sync::{BucketSummary, Live, Time};

use super::links::matrix;
use super::servers;
use super::state::{Process, State};

/// Explanation of the characters of a bar.
const LEGEND: &str =
    "step: █ compute  ▓ compute while gradients travel  ░ wait for them  · the rest";

/// Digits of an id with which processes can be told apart.
pub const ID: usize = 8;
/// Most characters of a host name.
const HOST: usize = 14;
/// Fewest and most characters of a bar.
const BAR: std::ops::RangeInclusive<usize> = 8..=60;
/// Most characters of a list of buckets that are exchanged in the same way.
const SPANS: usize = 18;

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Characters in a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

/// Returns the screen in lines of about `width` characters.
pub fn screen(state: &State, width: usize) -> String {
    let mut lines = heading(state);
    lines.push(String::new());
    lines.extend(ranks(state, width));
    if let Some(found) = &state.servers {
        lines.push(String::new());
        lines.extend(servers::lines(found));
    }
    if let Some(first) = state.first() {
        lines.extend(links(first, state.members.len(), width));
        lines.extend(plan(&first.buckets));
    }
    lines.iter().map(|line| format!("{}\n", escaping::line(line).trim_end())).collect()
}

/// Returns the text without the parts that do not fit on the terminal.
pub fn clipped(text: &str, size: Size) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // The cursor stands below the last line.
    let room = size.rows.saturating_sub(1).max(1);
    let kept = if lines.len() > room { room - 1 } else { lines.len() };
    let line = |line: &&str| match line.chars().count() > size.columns {
        true => escaping::shortened(line, size.columns.saturating_sub(1)) + "\n",
        false => format!("{line}\n"),
    };
    let mut clipped: String = lines[..kept].iter().map(line).collect();
    if kept < lines.len() {
        clipped += &format!("… {} more lines: --once shows them\n", lines.len() - kept);
    }
    clipped
}

/// Returns the lines about the whole job.
fn heading(state: &State) -> Vec<String> {
    let State { epoch, target, min, max, .. } = state;
    let present = state.present();
    let epoch = if *epoch == 0 { "no epoch yet".to_owned() } else { format!("epoch {epoch}") };
    let mut lines = vec![format!("{epoch}: {present} of {target} ranks, {min} to {max} allowed")];
    // Programs that tell no figures report their steps all the same.
    let step =
        state.members.iter().filter_map(|process| process.step.max(process.figures.step)).max();
    if let (Some(step), Some(live @ Live { steps, loss, samples_per_s, .. })) =
        (step, state.first())
    {
        let of = steps.map_or(String::new(), |steps| format!(" of {}", count(steps)));
        let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.3}"));
        let rate = samples_per_s.map(|rate| format!(", {} samples/s", digits(rate)));
        lines.push(format!("step {}{of}{loss}{}", count(step), rate.unwrap_or_default()));
        lines.extend(adapted(live));
    }
    lines.extend(state.waiting.iter().map(|reason| format!("waiting: {reason}")));
    lines.extend(state.end.iter().map(|end| match end.as_str() {
        "complete" => "over: all steps are done".to_owned(),
        _ => "over: all processes are to leave".to_owned(),
    }));
    lines
}

/// Returns the line about values that policies adapt.
fn adapted(live: &Live) -> Option<String> {
    let noise = live.noise_scale.map(|rows| format!(", noise scale {} rows", digits(rows)));
    live.batch.map(|rows| format!("batch of {} rows{}", count(rows), noise.unwrap_or_default()))
}

/// Returns a line for each process, with the time of its step as a bar.
fn ranks(state: &State, width: usize) -> Vec<String> {
    let caches = state.processes().any(|process| process.figures.cache_hits.is_some());
    let with_hits = |cells: [String; 6], hits: String| {
        let mut cells = cells.to_vec();
        cells.extend(caches.then_some(hits));
        cells
    };
    let header = ["rank", "process", "host:pid", "state", "step", "per step"].map(str::to_owned);
    let mut table = Table::new(with_hits(header, "cache hits".to_owned()));
    for process in state.processes() {
        let hits = process.figures.cache_hits.map_or_else(|| "-".to_owned(), percent);
        table.row(with_hits(row(process, state.state_of(process)), hits));
    }
    let mut lines: Vec<String> = table.to_string().lines().map(str::to_owned).collect();
    let length = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let room = width.saturating_sub(length + 2).min(*BAR.end());
    let times: Vec<Option<Time>> = state.processes().map(shown_time).collect();
    if room < *BAR.start() || times.iter().all(Option::is_none) {
        return lines;
    }
    let longest_s = times.iter().flatten().map(|time| time.step_s).fold(0.0, f64::max);
    for (line, time) in lines.iter_mut().skip(1).zip(times) {
        let bar = time.map_or(String::new(), |time| bar(&time, longest_s, room));
        let space = " ".repeat(length + 2 - line.chars().count());
        *line += &format!("{space}{bar}");
    }
    lines.push(LEGEND.to_owned());
    lines
}

/// Returns the times of a process, if it takes steps.
fn shown_time(process: &Process) -> Option<Time> {
    process.figures.time.filter(|_| matches!(process.standing.as_str(), "running" | "halted"))
}

/// Returns the host and the process id of a process.
pub fn place(host: Option<&String>, pid: Option<u32>) -> String {
    let host = host.map(|host| escaping::shortened(host, HOST));
    let place = host.zip(pid).map(|(host, pid)| format!("{host}:{pid}"));
    place.unwrap_or_else(|| "-".to_owned())
}

/// Returns the name that the launcher uses for a process, or the first digits of its id.
fn name(process: &Process) -> String {
    let member = process.figures.member.map(|number| format!("member {number}"));
    member.unwrap_or_else(|| process.id.chars().take(ID).collect())
}

fn row(process: &Process, standing: &str) -> [String; 6] {
    let nothing = || "-".to_owned();
    let Live { host, pid, .. } = &process.figures;
    [
        process.rank.map_or_else(nothing, |rank| rank.to_string()),
        name(process),
        place(host.as_ref(), *pid),
        standing.to_owned(),
        process.step.max(process.figures.step).map_or_else(nothing, count),
        shown_time(process).map_or_else(nothing, |time| seconds(time.step_s)),
    ]
}

fn links(first: &Live, ranks: usize, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    match (first.links.is_empty(), ranks) {
        (_, 0 | 1) => return Vec::new(),
        (true, _) if first.buckets.is_empty() => return Vec::new(),
        (true, 17..) => lines.push("links: not measured one by one among so many ranks".to_owned()),
        (true, _) => lines.push("links: not measured, which only --codec auto does".to_owned()),
        (false, _) => lines.extend(matrix(&first.links, width)),
    }
    lines
}

/// Returns a line for each way in which gradients are exchanged.
fn plan(ways: &[BucketSummary]) -> Vec<String> {
    if ways.is_empty() {
        return Vec::new();
    }
    let header = ["buckets", "codec", "algorithm", "parts", "as f32", "sent", "smaller"];
    let mut table = Table::new(header);
    for way in ways {
        let spans: Vec<String> = way.buckets.iter().map(span).collect();
        table.row([
            escaping::shortened(&spans.join(","), SPANS),
            way.codec.clone(),
            way.algorithm.clone(),
            way.partitions.to_string(),
            bytes(way.raw_bytes as f64),
            bytes(way.sent_bytes as f64),
            ratio(way.raw_bytes as f64 / way.sent_bytes as f64),
        ]);
    }
    let mut lines = vec![String::new()];
    lines.extend(table.to_string().lines().map(str::to_owned));
    lines
}

fn span((first, last): &(u32, u32)) -> String {
    if first == last { first.to_string() } else { format!("{first}–{last}") }
}

/// Returns the time of a step as a bar. A step of `longest_s` has a bar of `width` characters.
fn bar(time: &Time, longest_s: f64, width: usize) -> String {
    let ends = [
        ('█', time.compute_s - time.hidden_s),
        ('▓', time.hidden_s),
        ('░', time.wait_s),
        ('·', time.other_s),
    ];
    let (mut bar, mut end_s, mut length) = (String::new(), 0.0, 0);
    for (letter, seconds) in ends {
        // Ends are rounded and not lengths, so that bars of equal steps are equally long.
        end_s += seconds.max(0.0);
        let end = (end_s / longest_s.max(f64::MIN_POSITIVE) * width as f64).round() as usize;
        let end = end.min(width);
        (length..end).for_each(|_| bar.push(letter));
        length = length.max(end);
    }
    bar
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn process(rank: Option<u32>, standing: &str) -> Value {
        json!({
            "id": format!("{:016x}", 0x2c4f_0a9b_0000_0000_u64 + u64::from(rank.unwrap_or(99)) * 0x1000_0000),
            "rank": rank, "standing": standing, "step": 1234,
            "figures": {
                "host": "node7", "pid": 12_345, "step": 1234, "steps": 6000, "loss": 2.31,
                "samples_per_s": 1230.4,
                "time": { "step_s": 0.4, "compute_s": 0.3, "hidden_s": 0.1, "wait_s": 0.06, "other_s": 0.04 },
            },
        })
    }

    fn state(ranks: u32) -> Value {
        let mut first = process(Some(0), "running");
        let pairs = (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| (low, high)));
        let pairs = pairs.map(|(low, high)| {
            json!({ "ranks": [low, high], "latency_s": 2.1e-4, "bytes_per_s": 1.18e8 })
        });
        first["figures"]["links"] = pairs.collect();
        first["figures"]["buckets"] = json!([
            { "buckets": [[0, 13], [15, 15]], "codec": "powersgd:4", "algorithm": "two-shot",
              "partitions": 2, "raw_bytes": 42_000_000, "sent_bytes": 10_600_000 },
            { "buckets": [[14, 14]], "codec": "none", "algorithm": "hierarchical",
              "partitions": 1, "raw_bytes": 1000, "sent_bytes": 1040 },
        ]);
        let others = (1..ranks).map(|rank| process(Some(rank), "running"));
        json!({
            "epoch": 3, "step": 1000, "target": ranks, "min": 2, "max": ranks, "waiting": null, "end": null,
            "members": std::iter::once(first).chain(others).collect::<Vec<_>>(),
            "newcomers": [],
        })
    }

    fn shown(state: Value, width: usize) -> Vec<String> {
        screen(&State::of(state).unwrap(), width).lines().map(str::to_owned).collect()
    }

    #[test]
    fn four_ranks_fit_into_24_lines_of_80_characters() {
        let lines = shown(state(4), 80);
        assert_eq!(lines[0], "epoch 3: 4 of 4 ranks, 2 to 4 allowed");
        assert_eq!(lines[1], "step 1\u{2009}234 of 6\u{2009}000, loss 2.310, 1230 samples/s");
        let first = &lines[4];
        assert!(
            first.starts_with("0     2c4f0a9b  node7:12345  running  1\u{2009}234    400 ms  █")
        );
        assert!(lines.len() < 24, "{lines:#?}");
        let last = lines.last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(last[..4], ["14", "none", "hierarchical", "1"]);
    }

    #[test]
    fn hits_of_caches_have_a_column_if_there_are_caches() {
        let mut state = state(2);
        assert!(!shown(state.clone(), 80)[3].contains("cache hits"));
        state["members"][1]["figures"]["cache_hits"] = json!(0.875);
        let lines = shown(state, 100);
        assert!(lines[3].contains("per step  cache hits"), "{lines:#?}");
        assert!(lines[5].contains("88 %"), "{lines:#?}");
    }

    #[test]
    fn what_policies_adapt_is_a_line() {
        let mut state = state(2);
        state["members"][0]["figures"]["batch"] = json!(64);
        assert_eq!(shown(state.clone(), 80)[2], "batch of 64 rows");
        state["members"][0]["figures"]["noise_scale"] = json!(210.4);
        assert_eq!(shown(state, 80)[2], "batch of 64 rows, noise scale 210 rows");
    }

    #[test]
    fn no_line_is_longer_than_the_screen() {
        for ranks in [1, 2, 4, 8, 16] {
            for width in [80, 100, 120] {
                let lines = shown(state(ranks), width);
                let long = lines.iter().filter(|line| line.chars().count() > width);
                assert_eq!(long.collect::<Vec<_>>(), [""; 0], "{ranks} ranks in {width}");
            }
        }
    }

    #[test]
    fn who_is_lost_does_not_count_and_who_joins_has_no_rank() {
        let mut state = state(2);
        state["members"][1] = process(Some(1), "lost");
        state["newcomers"] = json!([process(None, "newcomer"), { "id": "00000000000000cc" }]);
        state["waiting"] = json!("1 of at least 2 ranks are there");
        let lines = shown(state, 80);
        assert_eq!(lines[0], "epoch 3: 1 of 2 ranks, 2 to 2 allowed");
        assert_eq!(lines[2], "waiting: 1 of at least 2 ranks are there");
        let find = |word: &str| lines.iter().find(|line| line.contains(word)).unwrap();
        assert!(find("lost").starts_with('1') && !find("lost").contains('█'), "{lines:#?}");
        assert!(find("joining").starts_with('-') && find("joining").contains("node7:12345"));
        assert!(find("00000000").contains('-'));
    }

    #[test]
    fn a_terminal_without_room_says_so() {
        let text = screen(&State::of(state(8)).unwrap(), 80);
        let found = clipped(&text, Size { columns: 30, rows: 10 });
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines.len(), 9);
        assert!(lines.iter().all(|line| line.chars().count() <= 35), "{found}");
        assert!(lines[8].starts_with("… ") && lines[8].ends_with(" more lines: --once shows them"));
        assert_eq!(clipped(&text, Size { columns: 200, rows: 60 }), text);
    }

    #[test]
    fn a_job_before_its_first_epoch_has_no_rank() {
        let empty =
            json!({ "epoch": 0, "target": 4, "min": 2, "max": 4, "members": [], "newcomers": [] });
        assert_eq!(shown(empty, 80)[0], "no epoch yet: 0 of 4 ranks, 2 to 4 allowed");
    }

    #[test]
    fn the_longest_step_fills_its_bar() {
        let time = Time { step_s: 1.0, compute_s: 0.6, hidden_s: 0.2, wait_s: 0.3, other_s: 0.1 };
        assert_eq!(bar(&time, 1.0, 10), "████▓▓░░░·");
        assert_eq!(bar(&time, 2.0, 10), "██▓░░");
        assert_eq!(bar(&Time::default(), 0.0, 10), "");
        let wrong = Time { compute_s: f64::NAN, hidden_s: -1.0, wait_s: 1e300, ..time };
        assert!(bar(&wrong, 1.0, 10).chars().count() <= 10);
    }
}

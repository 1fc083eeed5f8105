//! Matrix of the links between ranks, with bandwidth above the diagonal and latency below it.

use thinwire_report::figures::digits;
use thinwire_sync::Pair;

const RATES: [(f64, &str); 3] = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")];
const TIMES: [(f64, &str); 3] = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];

/// Largest number of ranks that are shown; for more ranks, no program measures all pairs.
const RANKS_MAX: u32 = 256;

/// Returns the matrix for as many ranks as fit, in lines of at most `width` characters.
pub fn matrix(pairs: &[Pair], width: usize) -> Vec<String> {
    let is_pair = |pair: &&Pair| pair.ranks.0 < pair.ranks.1 && pair.ranks.1 < RANKS_MAX;
    let pairs: Vec<&Pair> = pairs.iter().filter(is_pair).collect();
    let ranks = pairs.iter().map(|pair| pair.ranks.1 + 1).max().unwrap_or(0) as usize;
    let (rate, rate_unit) = unit(pairs.iter().map(|pair| pair.bytes_per_s), &RATES);
    let (time, time_unit) = unit(pairs.iter().map(|pair| pair.latency_s), &TIMES);
    let mut cells = vec![vec![String::new(); ranks]; ranks];
    for pair in &pairs {
        let (low, high) = (pair.ranks.0 as usize, pair.ranks.1 as usize);
        cells[low][high] = digits(pair.bytes_per_s / rate);
        cells[high][low] = digits(pair.latency_s / time);
    }
    (0..ranks).for_each(|rank| cells[rank][rank] = "·".to_owned());
    let longest = cells.iter().flatten().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let cell = longest.max(ranks.to_string().len()) + 2;
    let shown = (width.saturating_sub(LABEL) / cell).min(ranks);
    let row = |label: String, cells: &[String]| {
        let cells = cells[..shown].iter().map(|text| format!("{text:>cell$}"));
        format!("{label:>LABEL$}{}", cells.collect::<String>())
    };
    let header: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
    let title = format!("links: {rate_unit} to the right of the dots, {time_unit} to the left");
    let mut lines = vec![title, row(String::new(), &header)];
    lines.extend((0..shown).map(|rank| row(rank.to_string(), &cells[rank])));
    if shown < ranks {
        lines.push(format!("  and those of {} more ranks: --json has all", ranks - shown));
    }
    lines
}

/// Characters of the first column.
const LABEL: usize = 4;

/// Returns the largest unit in which the smallest value is at least 1, otherwise the smallest unit.
fn unit<'a>(values: impl Iterator<Item = f64>, units: &[(f64, &'a str)]) -> (f64, &'a str) {
    let least = values.fold(f64::INFINITY, f64::min);
    units.iter().copied().find(|(unit, _)| least >= *unit).unwrap_or(units[units.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(low: u32, high: u32) -> Pair {
        let bytes_per_s = if low == 0 && high == 2 { 1.12e7 } else { 1.18e8 };
        Pair {
            ranks: (low, high),
            latency_s: 2e-4 + f64::from(high) * 1e-5,
            bytes_per_s,
            same_host: false,
        }
    }

    fn pairs(ranks: u32) -> Vec<Pair> {
        (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| pair(low, high))).collect()
    }

    #[test]
    fn every_pair_has_a_bandwidth_and_a_latency() {
        let expected = [
            "links: MB/s to the right of the dots, µs to the left",
            "         0     1     2",
            "   0     ·   118  11.2",
            "   1   210     ·   118",
            "   2   220   220     ·",
        ];
        assert_eq!(matrix(&pairs(3), 80), expected);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let lines = matrix(&pairs(16), 40);
        assert!(lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "  and those of 10 more ranks: --json has all");
        // Figures of an unknown program are no reason to fail.
        for ranks in [(3, 1), (0, u32::MAX)] {
            assert_eq!(matrix(&[Pair { ranks, ..pair(0, 1) }], 80).len(), 2);
        }
    }
}

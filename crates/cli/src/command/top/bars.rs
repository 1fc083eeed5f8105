//! Time of a step as a bar of characters.

use thinwire_sync::Time;

/// Meaning of the characters of a bar.
pub const LEGEND: &str =
    "step: █ compute  ▓ compute while gradients travel  ░ wait for them  · the rest";

/// Returns the time of a step as a bar; one of `longest_s` is `width` characters long.
pub fn bar(time: &Time, longest_s: f64, width: usize) -> String {
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
    use super::*;

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

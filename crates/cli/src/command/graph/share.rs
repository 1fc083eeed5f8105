//! Vertices for training, validation and test, drawn at random.

use thinwire_graph::Split;
use thinwire_wire::random::Key;

/// Stream of the random numbers.
const STREAM: u32 = 0x7370_6c74;

/// Reads a share of vertices.
///
/// # Errors
/// If the text is no number above 0 and up to 1.
pub fn parse(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("share '{text}', expected a number above 0 and up to 1"))
}

/// Draws a share of all vertices for training, and half of the others each for validation and test.
pub fn split(vertices: u32, share: f32, seed: u64) -> Vec<Split> {
    let key = Key { seed, step: 0, tensor: STREAM };
    let uses = |vertex: u32| match key.uniform(u64::from(vertex)) {
        draw if draw < share => Split::Train,
        draw if draw < (1.0 + share) / 2.0 => Split::Validation,
        _ => Split::Test,
    };
    (0..vertices).map(uses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_asked_for() {
        let split = split(10_000, 0.2, 3);
        for (wanted, expected) in
            [(Split::Train, 2000.0), (Split::Validation, 4000.0), (Split::Test, 4000.0)]
        {
            let found = split.iter().filter(|split| **split == wanted).count() as f64;
            assert!((found - expected).abs() < 200.0, "{wanted} {found}");
        }
        assert_eq!(parse("0.5"), Ok(0.5));
        assert_eq!(parse("0").unwrap_err(), "share '0', expected a number above 0 and up to 1");
        assert!(parse("nan").is_err() && parse("2").is_err());
    }
}

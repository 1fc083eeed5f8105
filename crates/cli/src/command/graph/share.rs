//! Random division of vertices into those for training, validation and test.

use thinwire_graph::{NO_LABEL, Split};
use thinwire_wire::random::Key;

/// Stream number of the random generator.
const STREAM: u32 = 0x7370_6c74;

/// Parses a share of vertices.
///
/// # Errors
/// If the text is not a number above 0 and at most 1.
pub fn parse(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| format!("share '{text}', expected a number above 0 and up to 1"))
}

/// Draws a share of all vertices for training. Half of the rest is for validation, the other half for test.
pub fn split(vertices: u32, share: f32, seed: u64) -> Vec<Split> {
    let key = Key { seed, step: 0, tensor: STREAM };
    let uses = |vertex: u32| match key.uniform(u64::from(vertex)) {
        draw if draw < share => Split::Train,
        draw if draw < (1.0 + share) / 2.0 => Split::Validation,
        _ => Split::Test,
    };
    (0..vertices).map(uses).collect()
}

/// Removes the use of vertices that have no label.
pub fn labelled(mut split: Vec<Split>, labels: Option<&[u32]>) -> Vec<Split> {
    for (split, label) in split.iter_mut().zip(labels.unwrap_or_default()) {
        if *label == NO_LABEL {
            *split = Split::None;
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vertices_without_a_label_have_no_use() {
        let drawn = split(100, 0.5, 1);
        let labels: Vec<u32> = (0..100).map(|v| if v % 2 == 0 { NO_LABEL } else { v }).collect();
        let found = labelled(drawn.clone(), Some(&labels));
        let kept =
            |(vertex, split): (usize, &Split)| *split == [Split::None, drawn[vertex]][vertex % 2];
        assert!(found.iter().enumerate().all(kept));
        assert_eq!(labelled(drawn.clone(), None), drawn);
    }

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

//! The two products of attention, recognised by their letters: scores, and the mixture of values.

use crate::MatMul;

/// The product of queries and keys: for each operand, the positions of its leading dimensions, its rows and
/// its features.
pub(super) struct Scores {
    /// Whether keys are the first operand.
    pub keys_first: bool,
    /// The dimensions of queries, in the order leading, query, feature.
    pub queries: Vec<usize>,
    /// The dimensions of keys, in the order leading, key, feature.
    pub keys: Vec<usize>,
}

impl Scores {
    /// Returns a product as scores, if its output ends with a query and a key.
    pub fn of(product: &MatMul) -> Option<Scores> {
        let output: Vec<char> = product.output.chars().collect();
        let [leading @ .., query, key] = &output[..] else { return None };
        let keys_first = product.left.contains(*key);
        let (q, k) = match keys_first {
            true => (&product.right, &product.left),
            false => (&product.left, &product.right),
        };
        let feature = q.chars().find(|letter| !product.output.contains(*letter))?;
        let order =
            |row: char| -> Vec<char> { leading.iter().copied().chain([row, feature]).collect() };
        let (queries, keys) = (places(q, &order(*query))?, places(k, &order(*key))?);
        Some(Scores { keys_first, queries, keys })
    }
}

/// The product of weights and values.
pub(super) struct Mixture {
    /// The dimensions of values, in the order leading, key, feature.
    pub values: Vec<usize>,
    /// The dimensions of the output, in the order leading, query, feature.
    pub output: Vec<usize>,
}

impl Mixture {
    /// Returns a product of weights, its first operand, as a mixture of values.
    pub fn of(product: &MatMul) -> Option<Mixture> {
        let weights: Vec<char> = product.left.chars().collect();
        let [leading @ .., query, key] = &weights[..] else { return None };
        let feature = product.right.chars().find(|letter| !product.left.contains(*letter))?;
        let order =
            |row: char| -> Vec<char> { leading.iter().copied().chain([row, feature]).collect() };
        let values = places(&product.right, &order(*key))?;
        let mixed = order(*query);
        let place = |letter: char| mixed.iter().position(|other| *other == letter);
        let output: Vec<usize> = product.output.chars().map(place).collect::<Option<_>>()?;
        (output.len() == mixed.len()).then_some(Mixture { values, output })
    }
}

/// Returns the positions of letters in a list of exactly these letters.
fn places(list: &str, letters: &[char]) -> Option<Vec<usize>> {
    let place = |letter: &char| list.chars().position(|other| other == *letter);
    let places: Vec<usize> = letters.iter().map(place).collect::<Option<_>>()?;
    (places.len() == list.chars().count()).then_some(places)
}

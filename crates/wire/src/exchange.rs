//! Exchanges: the ways in which encodings of several ranks become one.

/// Way in which the encodings of several ranks may be brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Partial sums are encoded again at every hop, since the codec is linear up to rounding.
    Summable,
    /// Every rank encodes once for the owner of a chunk, and the owner encodes the sum once more.
    TwoShot,
    /// Every rank sends its encoding to all ranks, which merge all encodings in the order of ranks.
    Gather,
}

//! The ways in which encodings of several ranks become one.

/// How the encodings of several ranks may be brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// The codec is linear up to rounding: partial sums may be encoded again at every hop.
    Summable,
    /// Every rank encodes once for the owner of a chunk; the owner encodes the sum once more.
    TwoShot,
    /// Every rank's encoding goes to everybody, who merge them in the order of ranks.
    Gather,
}

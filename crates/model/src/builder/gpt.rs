//! GPT: a decoder of equal blocks, as in GPT-2 and GPT-3.

/// The sizes of a GPT. The head is the embedding, transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// Blocks.
    pub layers: usize,
    /// Features of a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features within the feed-forward part; usually four times `hidden`.
    pub feed_forward: usize,
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Tokens of a sequence at most.
    pub positions: usize,
}

/// The model of this name: gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b,
/// gpt3-13b, gpt3-175b or gpt-1t.
pub fn named(name: &str) -> Option<Gpt> {
    let (layers, hidden, heads) = match name {
        "gpt2" => (12, 768, 12),
        "gpt2-medium" => (24, 1024, 16),
        "gpt2-large" => (36, 1280, 20),
        "gpt2-xl" => (48, 1600, 25),
        "gpt3-1.3b" => (24, 2048, 16),
        "gpt3-2.7b" => (32, 2560, 32),
        "gpt3-6.7b" => (32, 4096, 32),
        "gpt3-13b" => (40, 5120, 40),
        "gpt3-175b" => (96, 12288, 96),
        "gpt-1t" => (128, 25600, 160),
        _ => return None,
    };
    let (vocabulary, positions) = match name.starts_with("gpt2") {
        true => (50257, 1024),
        false => (51200, 2048),
    };
    Some(Gpt { layers, hidden, heads, feed_forward: 4 * hidden, vocabulary, positions })
}

//! Range asymmetric numeral systems (rANS) over bytes: entropy coding with a given table.
//!
//! Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression
//! rate of arithmetic coding" (2013); Giesen, "Interleaved entropy coders" (2014). 32 states are
//! interleaved: symbol `i` belongs to state `i % 32`. A state lies in `2^15..2^31` and gives up or takes
//! in 16 bits at a time. Encoding goes from the last symbol to the first and fills its output from the
//! end, so that decoding goes forward through both.
//!
//! Law: decoding the words that encoding wrote, from the states that it ended with, gives the symbols,
//! and takes every state back to where encoding began: [`LOWEST`].

/// Interleaved states.
pub(crate) const STATES: usize = 32;
/// Sum of the frequencies of all symbols.
pub(crate) const TOTAL: u32 = 1 << TOTAL_BITS;
/// Binary digits of a frequency.
pub(super) const TOTAL_BITS: u32 = 12;
/// Lower end of the interval in which states lie; encoding begins with every state here.
pub(crate) const LOWEST: u32 = 1 << 15;
/// Binary digits of a word.
pub(super) const WORD_BITS: u32 = 16;

/// Frequency of each symbol, in parts of [`TOTAL`].
pub(crate) type Frequencies = [u32; 256];

/// Scales counts to frequencies: at least 1 for a symbol that occurs, below [`TOTAL`] for every symbol,
/// and [`TOTAL`] in sum. If `n` symbols occur, the frequency of each is at least `1 - n / TOTAL` of its
/// exact share.
pub(crate) fn normalise(counts: &[u32; 256]) -> Frequencies {
    let all = counts.iter().map(|count| u64::from(*count)).sum::<u64>().max(1);
    let shared = u64::from(TOTAL) - counts.iter().filter(|count| **count > 0).count() as u64;
    let share = |count: u32| (u64::from(count) * shared / all) as u32;
    let mut frequencies = counts.map(|count| if count == 0 { 0 } else { 1 + share(count) });
    let largest = (0..256).max_by_key(|&i| (counts[i], 256 - i)).expect("there are 256");
    frequencies[largest] += TOTAL - frequencies.iter().sum::<u32>();
    // A frequency of all would need a binary digit more.
    if let Some(only) = frequencies.iter().position(|frequency| *frequency == TOTAL) {
        frequencies[only] -= 1;
        frequencies[only ^ 1] = 1;
    }
    frequencies
}

/// Counts how often each symbol occurs.
pub(crate) fn histogram(symbols: &[u8]) -> [u32; 256] {
    // Neighbours are often equal, and a counter that was just written is slow to read.
    let mut counts = [[0_u32; 256]; 4];
    let (fours, rest) = symbols.as_chunks::<4>();
    for four in fours {
        counts.iter_mut().zip(four).for_each(|(counts, symbol)| counts[usize::from(*symbol)] += 1);
    }
    rest.iter().for_each(|symbol| counts[0][usize::from(*symbol)] += 1);
    std::array::from_fn(|symbol| counts.iter().map(|counts| counts[symbol]).sum())
}

/// Constants of encoding, by symbol.
#[derive(Clone, Debug)]
pub(crate) struct EncodeTable {
    /// Reciprocals of the frequencies, in place of a division (Alverson, "Integer division using
    /// reciprocals", 1991).
    pub(super) reciprocals: [u32; 256],
    /// From the lowest digit: the bias (13 bits), [`TOTAL`] minus the frequency (12), and the shift of
    /// the reciprocal (4).
    pub(super) steps: [u32; 256],
}

/// Binary digits of the parts of [`EncodeTable::steps`].
pub(super) const BIAS_BITS: u32 = 13;
pub(super) const COMPLEMENT_BITS: u32 = 12;

impl EncodeTable {
    /// Returns the table of some frequencies, as [`normalise`] makes them.
    pub(crate) fn new(frequencies: &Frequencies) -> EncodeTable {
        let mut table = EncodeTable { reciprocals: [0; 256], steps: [0; 256] };
        let mut start = 0;
        for (symbol, &frequency) in frequencies.iter().enumerate().filter(|(_, f)| **f > 0) {
            let (reciprocal, shift, bias) = match frequency {
                // The quotient by this reciprocal is one too small.
                1 => (u32::MAX, 0, start + TOTAL - 1),
                _ => {
                    let digits = u32::BITS - (frequency - 1).leading_zeros();
                    let reciprocal = (1_u64 << (digits + 31)).div_ceil(u64::from(frequency));
                    (reciprocal as u32, digits - 1, start)
                }
            };
            table.reciprocals[symbol] = reciprocal;
            let complement = TOTAL - frequency;
            table.steps[symbol] =
                bias | complement << BIAS_BITS | shift << (BIAS_BITS + COMPLEMENT_BITS);
            start += frequency;
        }
        table
    }
}

/// Symbols by the last [`TOTAL_BITS`] binary digits of a state. From the lowest digit: the symbol (8
/// bits), its frequency (12), and the place of these digits among those of the symbol (12).
#[derive(Clone, Debug)]
pub(crate) struct DecodeTable(pub(super) Box<[u32; TOTAL as usize]>);

impl DecodeTable {
    /// Returns the table; `None` if the frequencies do not add up to [`TOTAL`] or one has all of it.
    pub(crate) fn new(frequencies: &Frequencies) -> Option<DecodeTable> {
        if frequencies.iter().sum::<u32>() != TOTAL || frequencies.contains(&TOTAL) {
            return None;
        }
        let mut entries = Box::new([0; TOTAL as usize]);
        let mut rest = entries.as_mut_slice();
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            let (own, after) = rest.split_at_mut(frequency as usize);
            for (place, entry) in (0..).zip(own) {
                *entry = symbol as u32 | frequency << 8 | place << 20;
            }
            rest = after;
        }
        Some(DecodeTable(entries))
    }
}

/// Encoder of one stream.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    /// States, which are sent before the words.
    pub(crate) states: [u32; STATES],
    /// Words, from `at` to the end.
    pub(super) output: &'a mut [u8],
    /// First byte that was written.
    pub(crate) at: usize,
    /// Whether the output was too short.
    pub(crate) is_full: bool,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(output: &'a mut [u8]) -> Encoder<'a> {
        Encoder { states: [LOWEST; STATES], at: output.len(), output, is_full: false }
    }

    /// Encodes a symbol into one of the states.
    #[inline(always)]
    pub(super) fn put(&mut self, state: usize, symbol: u8, table: &EncodeTable) {
        let step = table.steps[usize::from(symbol)];
        let (bias, complement, shift) = (
            step & ((1 << BIAS_BITS) - 1),
            step >> BIAS_BITS & ((1 << COMPLEMENT_BITS) - 1),
            step >> (BIAS_BITS + COMPLEMENT_BITS),
        );
        let mut x = self.states[state];
        // Above this, the state would leave its range.
        if x >= (TOTAL - complement) << (31 - TOTAL_BITS) {
            match self.at.checked_sub(2) {
                Some(at) => {
                    self.output[at..self.at].copy_from_slice(&(x as u16).to_le_bytes());
                    self.at = at;
                }
                None => self.is_full = true,
            }
            x >>= WORD_BITS;
        }
        let reciprocal = u64::from(table.reciprocals[usize::from(symbol)]);
        let quotient = ((u64::from(x) * reciprocal) >> 32) as u32 >> shift;
        self.states[state] = x + bias + quotient * complement;
    }
}

/// Decoder of one stream.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    pub(super) states: [u32; STATES],
    /// Words, and what lies behind them, which a vector loop may look at.
    pub(super) words: &'a [u8],
    /// First byte that was not read.
    pub(super) at: usize,
    /// Bytes of the words.
    end: usize,
}

impl<'a> Decoder<'a> {
    /// Returns the decoder of the first `end` bytes of `words`; `None` if there are fewer or a state lies
    /// outside of the interval.
    pub(crate) fn new(states: [u32; STATES], words: &'a [u8], end: usize) -> Option<Decoder<'a>> {
        let valid = states.iter().all(|state| (LOWEST..1 << 31).contains(state));
        (valid && end <= words.len()).then_some(Decoder { states, words, at: 0, end })
    }

    /// Returns whether decoding has read exactly all words, and taken every state back to [`LOWEST`].
    pub(crate) fn is_finished(&self) -> bool {
        self.at == self.end && self.states == [LOWEST; STATES]
    }

    /// Decodes a symbol from one of the states.
    #[inline(always)]
    pub(super) fn take(&mut self, state: usize, table: &DecodeTable) -> u8 {
        let x = self.states[state];
        let entry = table.0[(x & (TOTAL - 1)) as usize];
        let mut x = (entry >> 8 & (TOTAL - 1)) * (x >> TOTAL_BITS) + (entry >> 20);
        if x < LOWEST {
            // Too few words are noticed at the end.
            let word = self.words.get(self.at..self.at + 2).unwrap_or(&[0, 0]);
            let word = u16::from_le_bytes([word[0], word[1]]);
            self.at += 2;
            x = x << WORD_BITS | u32::from(word);
        }
        self.states[state] = x;
        entry as u8
    }
}

/// Encodes symbols in front of those that were encoded already. Only the first call may have a number of
/// symbols that [`STATES`] does not divide.
pub(super) fn rans_encode(coder: &mut Encoder<'_>, table: &EncodeTable, symbols: &[u8]) {
    for group in symbols.chunks(STATES).rev() {
        for (state, symbol) in group.iter().enumerate().rev() {
            coder.put(state, *symbol, table);
        }
    }
}

/// Decodes the next symbols. Only the last call may have a number of symbols that [`STATES`] does not
/// divide.
pub(super) fn rans_decode(coder: &mut Decoder<'_>, table: &DecodeTable, symbols: &mut [u8]) {
    for group in symbols.chunks_mut(STATES) {
        for (state, symbol) in group.iter_mut().enumerate() {
            *symbol = coder.take(state, table);
        }
    }
}

//! Control messages and saved states as bytes: serde types in the format of postcard.
//!
//! Laws: `decode(encode(x)) == x`; any bytes are a value or an error, never a panic; bytes behind a value are
//! an error. One value may have several encodings, because postcard accepts padded numbers.
//!
//! Memory: a list allocates at most 1 MiB before its items arrive, and each item takes at least one
//! byte, so the caller's limit on the length of a message bounds the memory of a value.

use serde::{Deserialize, Serialize, Serializer};

/// Length, in bytes, to which a text for people is cut in a message: a reason, or an error.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Returns a value as it is sent or saved.
///
/// # Panics
/// If the type is not one that postcard can write, such as a list of unknown length.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    encode_after(Vec::new(), value)
}

/// Appends a value to bytes.
///
/// # Panics
/// As [`encode`].
pub fn encode_after<T: Serialize + ?Sized>(bytes: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, bytes).expect("messages consist of types that postcard writes")
}

/// Reads the value that the bytes encode.
///
/// # Errors
/// If the bytes are not such a value, or more bytes follow it.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    let (value, rest) = decode_head(bytes)?;
    match rest.len() {
        0 => Ok(value),
        found => Err(Malformed::Long { found }),
    }
}

/// Reads the value at the beginning of the bytes. Returns it and the bytes behind it, which are not read.
///
/// # Errors
/// If the bytes do not begin with such a value.
pub fn decode_head<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), Malformed> {
    postcard::take_from_bytes(bytes).map_err(|error| match error {
        postcard::Error::DeserializeUnexpectedEnd => Malformed::Short { found: bytes.len() },
        postcard::Error::SerdeDeCustom => Malformed::Forbidden,
        _ => Malformed::Code,
    })
}

/// Returns the 64-bit FNV-1a hash of bytes, the same on every machine and in every version.
pub fn fingerprint(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Writes the first [`TEXT_BYTES_MAX`] bytes of a text: `#[serde(serialize_with = "cut_text")]`.
///
/// # Errors
/// As the serializer.
pub fn cut_text<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

/// Bytes as one piece rather than as a list of numbers, which takes far longer: `#[serde(with = "raw")]`. The
/// encoding is the same.
pub mod raw {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes bytes.
    ///
    /// # Errors
    /// As the serializer.
    pub fn serialize<S: Serializer, T: AsRef<[u8]> + ?Sized>(
        bytes: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes.as_ref())
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// As the deserializer, or if the deserializer cannot lend its bytes.
    pub fn deserialize<'de: 'a, 'a, D: Deserializer<'de>, T: From<&'a [u8]>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        <&'de [u8]>::deserialize(deserializer).map(|bytes: &'a [u8]| T::from(bytes))
    }
}

/// Reason why bytes are not a value of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within the value.
    #[error("{found} bytes, expected more")]
    Short {
        /// Number of bytes.
        found: usize,
    },
    /// Bytes follow the value.
    #[error("{found} bytes too many, expected none")]
    Long {
        /// Number of bytes behind the value.
        found: usize,
    },
    /// A field is a number that is too large for its type, text that is not UTF-8, or not a valid
    /// `bool` or option.
    #[error("a field that encodes no value of its type")]
    Code,
    /// The type of a field forbids its value, or an enum has no such variant.
    #[error("a field with a value that its type forbids")]
    Forbidden,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Value = (u64, Option<u32>, String, Vec<(bool, Vec<u16>)>, Result<u8, char>);

    proptest! {
        #[test]
        fn values_are_read_back_and_neither_cut_nor_continued(
            head: (u64, Option<u32>, String),
            list in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u16>(), 0..4)), 0..4),
            end: Result<u8, char>,
            more: u8
        ) {
            let value: Value = (head.0, head.1, head.2, list, end);
            let mut bytes = encode(&value);
            prop_assert_eq!(decode::<Value>(&bytes), Ok(value));
            for cut in 0..bytes.len() {
                prop_assert!(decode::<Value>(&bytes[..cut]).is_err());
            }
            bytes.push(more);
            prop_assert_eq!(decode::<Value>(&bytes), Err(Malformed::Long { found: 1 }));
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            if let Ok(value) = decode::<Value>(&bytes) {
                prop_assert_eq!(decode(&encode(&value)), Ok(value));
            }
        }
    }

    #[test]
    fn a_list_that_claims_to_be_long_is_refused_without_its_memory() {
        let claimed = encode(&(u64::MAX, 7_u8));
        let error = decode::<Vec<u64>>(&claimed).unwrap_err();
        assert!(matches!(error, Malformed::Short { .. } | Malformed::Code), "{error}");
        let claimed = encode(&(1_u64 << 40, 7_u8));
        assert_eq!(decode::<Vec<[u64; 9]>>(&claimed), Err(Malformed::Short { found: 7 }));
    }
}

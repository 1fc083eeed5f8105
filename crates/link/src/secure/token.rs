//! The secret of a job.

use std::fmt;

use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use crate::{Error, Kind};

/// Proves that a process belongs to the job; never printed.
///
/// Guesses can be tried out on a recorded handshake, so a token that protects anything should be
/// random, as [`Token::random`] makes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    key: [u8; 32],
}

impl Token {
    /// Returns the token that users wrote as `text`.
    pub fn new(text: &str) -> Token {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"thinwire job token 1\0");
        context.update(text.as_bytes());
        let key = context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes");
        Token { key }
    }

    /// Returns the token of one rendezvous of a job, derived from this token and `nonce`. Only processes
    /// that know both can derive it.
    #[must_use]
    pub fn of_meeting(&self, nonce: &str) -> Token {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"thinwire meeting token 1\0");
        context.update(&self.key);
        context.update(nonce.as_bytes());
        let key = context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes");
        Token { key }
    }

    /// Returns a random text of 32 hexadecimal digits, to be given to every rank of a job.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn random() -> Result<String, Error> {
        let mut bytes = [0; 16];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| Error::new(Kind::Io, "the operating system gives no random bytes"))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the pre-shared key of the handshake.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_printed() {
        let text = Token::random().unwrap();
        assert_eq!(text.len(), 32);
        assert_ne!(text, Token::random().unwrap());
        assert_eq!(format!("{:?}", Token::new(&text)), "Token(..)");
        assert!(Token::new("a") != Token::new("b"));
        let [first, second] = ["1", "2"].map(|nonce| Token::new("a").of_meeting(nonce));
        assert!(first != second && first != Token::new("a"));
    }
}

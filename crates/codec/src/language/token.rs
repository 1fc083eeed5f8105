//! Tokens of a text: words, numbers and symbols.

use super::refusal::Refusal;
use super::syntax::{Literal, Place};

/// Word, number, symbol, or end of a line that has one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Word(String),
    Number(Literal),
    Symbol(&'static str),
    LineEnd,
}

/// Bytes of the longest names and numbers, so that messages about them stay short.
const WORD_BYTES_MAX: usize = 64;

/// Every symbol, longer ones first.
const SYMBOLS: [&str; 18] =
    ["..", "<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", ",", ":"];

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(word) => write!(f, "'{word}'"),
            Token::Number(number) => write!(f, "{}", number.value),
            Token::Symbol(symbol) => write!(f, "'{symbol}'"),
            Token::LineEnd => f.write_str("the end of the line"),
        }
    }
}

/// Splits a text into tokens. A comment begins with `#`; within parentheses a line may end anywhere.
///
/// # Errors
/// The first letter or number that is not of the language.
pub(crate) fn tokens(source: &str) -> Result<Vec<(Place, Token)>, Refusal> {
    let mut tokens = Vec::new();
    let mut depth = 0usize;
    for (line, text) in (1..).zip(source.lines()) {
        let before = tokens.len();
        let code = text.split('#').next().unwrap_or_default();
        let mut rest = code;
        let column = |rest: &str| code[..code.len() - rest.len()].chars().count() + 1;
        while let Some(letter) = rest.trim_start().chars().next() {
            rest = rest.trim_start();
            let place = Place { line, column: column(rest) };
            let (token, length) = next(letter, rest, place)?;
            if length > WORD_BYTES_MAX {
                let message = format!("word of {length} letters, at most {WORD_BYTES_MAX}");
                return Err(Refusal::at(place, message));
            }
            match token {
                Token::Symbol("(" | "[") => depth += 1,
                Token::Symbol(")" | "]") => depth = depth.saturating_sub(1),
                _ => {}
            }
            rest = &rest[length..];
            tokens.push((place, token));
        }
        if tokens.len() > before && depth == 0 {
            tokens.push((Place { line, column: column("") }, Token::LineEnd));
        }
    }
    Ok(tokens)
}

/// Returns the token that `rest` begins with, and its length in bytes.
fn next(letter: char, rest: &str, place: Place) -> Result<(Token, usize), Refusal> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if letter.is_ascii_digit() {
        return number(rest, place);
    }
    if is_word(letter) {
        let word: String = rest.chars().take_while(|c| is_word(*c)).collect();
        let length = word.len();
        return Ok((Token::Word(word), length));
    }
    match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
        Some(symbol) => Ok((Token::Symbol(symbol), symbol.len())),
        None => Err(Refusal::at(place, format!("{letter:?} has no meaning here"))),
    }
}

/// Reads a number: digits, an optional fraction, an optional exponent.
fn number(rest: &str, place: Place) -> Result<(Token, usize), Refusal> {
    let bytes = rest.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    let int_end = end;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end += 1 + digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        match digits((end + 1 + sign).min(bytes.len())) {
            0 => {}
            count => end += 1 + sign + count,
        }
    }
    let text = &rest[..end];
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => {
            Ok((Token::Number(Literal { value, is_int: end == int_end }), end))
        }
        _ if end > WORD_BYTES_MAX => Ok((Token::LineEnd, end)),
        _ => Err(Refusal::at(place, format!("number {text} is beyond what 64 bits hold"))),
    }
}

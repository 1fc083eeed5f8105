//! Text that cannot drive a terminal.
//!
//! Names of models, plans, clusters and codecs come from files, and reasons come from peers. A control
//! character in them could clear the screen, a change of text direction could make one name look like
//! another, and a line break could start a fake message. All of these are escaped.

/// Returns the text with all characters escaped that [drive](drives) a terminal, except line
/// breaks.
pub fn text(text: &str) -> String {
    escaped(text, |letter| letter == '\n' || letter == '\t')
}

/// Returns the text in one line: line breaks are escaped, too.
pub fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// Returns the text with at most `letters_max` letters, and an ellipsis if there are more.
pub fn shortened(text: &str, letters_max: usize) -> String {
    match text.char_indices().nth(letters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn escaped(text: &str, kept: impl Fn(char) -> bool) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match drives(letter) && !kept(letter) {
            true => plain.extend(letter.escape_default()),
            false => plain.push(letter),
        }
    }
    plain
}

/// Returns whether the character controls a terminal, or moves or hides the text around it: control
/// characters, line separators, direction marks, and characters of zero width.
pub fn drives(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(letter, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_is_written_out_and_letters_are_not() {
        for (given, expected) in [
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\u{9b}2Jb\r", "a\\u{9b}2Jb\\r"),
            ("abc\u{202e}txt\u{2066}\u{feff}", "abc\\u{202e}txt\\u{2066}\\u{feff}"),
            ("größe 大 · ±", "größe 大 · ±"),
        ] {
            assert_eq!(text(given), expected);
            assert_eq!(line(given), expected);
        }
        assert_eq!(text("a\nb\tc"), "a\nb\tc");
        assert_eq!(line("a\nerror: b\t"), "a\\nerror: b\\t");
    }
}

//! Line wrapping of reports for a terminal. Long lines continue below their last column.

/// The longest line, in letters.
const WIDTH: usize = 100;
/// Largest length of a group of words that stays together, in letters.
const TOGETHER_MAX: usize = 24;
/// Largest indentation for a continued line. A column further to the right leaves too little room.
const COLUMN_MAX: usize = 48;

/// Returns the text with lines of more than 100 letters broken at spaces. Continued lines are indented by two
/// spaces, or as far as the last column of the line if this column is not too far to the right. Words that
/// are longer are not broken.
pub fn wrapped(text: &str) -> String {
    text.split_inclusive('\n').flat_map(|line| broken(line.trim_end_matches('\n'))).collect()
}

/// Returns the parts of a line, each with its line end.
fn broken(line: &str) -> Vec<String> {
    if line.chars().count() <= WIDTH {
        return vec![format!("{line}\n")];
    }
    let indent = " ".repeat(column(line));
    let mut lines = Vec::new();
    let mut now = String::new();
    for (at, word) in together(line).iter().enumerate() {
        let long = now.chars().count() + 1 + word.chars().count() > WIDTH;
        if long && !word.is_empty() && !now.trim().is_empty() {
            lines.push(format!("{}\n", now.trim_end()));
            now = format!("{indent}{word}");
        } else {
            now += if at > 0 { " " } else { "" };
            now += word;
        }
    }
    lines.push(format!("{}\n", now.trim_end()));
    lines
}

/// Returns the words of a line, in which words that belong together are joined if the result is short.
fn together(line: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match all.last_mut() {
            Some(last) if belongs(last, word) && last.len() + 1 + word.len() <= TOGETHER_MAX => {
                *last += " ";
                *last += word;
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

/// Returns whether two words belong together: a number and its unit ("1.5 MiB"), a name and its number ("ZeRO
/// 1"), or a small word and the next word.
fn belongs(before: &str, word: &str) -> bool {
    let last = before.rsplit(' ').next().unwrap_or(before);
    let number = |word: &str| word.starts_with(|letter: char| letter.is_ascii_digit());
    let small = ["a", "of", "in", "to", "x", "and", "the", "at", "by"].contains(&last);
    !last.is_empty()
        && !word.is_empty()
        && !last.ends_with([',', ';', ':', ')'])
        && (small || number(last) != number(word))
        && !last.ends_with('%')
}

/// Returns the indentation of the continued lines.
fn column(line: &str) -> usize {
    let own = line.chars().take_while(|letter| *letter == ' ').count();
    let letters: Vec<char> = line.chars().collect();
    let begins = |at: &usize| letters[at - 2..*at] == [' ', ' '] && letters[*at] != ' ';
    let last = (own + 2..letters.len().min(COLUMN_MAX)).rev().find(begins);
    last.unwrap_or(own + 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_short_stays_and_what_is_long_goes_on_below_its_column() {
        let table = format!("a  1\n\n  name           2.5 s  {}\n", "word ".repeat(30).trim_end());
        let lines: Vec<String> = wrapped(&table).lines().map(str::to_owned).collect();
        assert_eq!(lines[..2], ["a  1", ""]);
        assert_eq!(lines[2], format!("  name           2.5 s  {}", "word ".repeat(15).trim_end()));
        assert_eq!(lines[3], format!("{}{}", " ".repeat(24), "word ".repeat(15).trim_end()));
        assert_eq!(lines.len(), 4);
        let plain = wrapped(&"word ".repeat(30));
        assert_eq!(plain.lines().nth(1).unwrap().find('w'), Some(2));
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("{long}\n")), format!("{long}\n"));
    }

    proptest! {
        #[test]
        fn no_line_is_longer_and_no_word_is_lost(words in prop::collection::vec("[a-z×]{0,30}", 0..60)) {
            let text = words.join(" ");
            let found = wrapped(&text);
            prop_assert!(found.lines().all(|line| line.chars().count() <= WIDTH), "{found}");
            prop_assert!(found.split_whitespace().eq(text.split_whitespace()));
        }
    }
}

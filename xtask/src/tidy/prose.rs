//! Prose: how the sentences of documentation begin.
//!
//! A sentence that begins with "What" or "Its" makes the reader look for a noun elsewhere; one that
//! begins with the noun or the verb itself is understood alone and found by a search.

/// The most sentences that may begin so, in percent of all.
pub const PERCENT_MAX: f64 = 1.0;

const OPENINGS: [&str; 7] = ["What", "How", "Which", "Whose", "Its", "Those", "The same"];

/// Sentences of documentation, counted.
#[derive(Debug, Default)]
pub struct Count {
    /// All sentences.
    pub sentences: usize,
    /// The sentences that begin with one of the openings, as `path:line: sentence`.
    pub found: Vec<String>,
}

impl Count {
    /// Adds the sentences of one Rust file.
    pub fn add(&mut self, path: &str, content: &str) {
        for (line, sentence) in paragraphs(content).iter().flat_map(Paragraph::sentences) {
            self.sentences += 1;
            if OPENINGS.iter().any(|opening| opens(&sentence, opening)) {
                self.found.push(format!("{path}:{line}: {sentence}"));
            }
        }
    }

    /// The share of the sentences that begin with one of the openings.
    pub fn percent(&self) -> f64 {
        100.0 * self.found.len() as f64 / self.sentences.max(1) as f64
    }

    /// The count in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} of {} sentences of documentation ({:.1} %) begin with {}",
            self.found.len(),
            self.sentences,
            self.percent(),
            OPENINGS.join(", ")
        )
    }
}

/// The lines of one paragraph, without their marks, each with its number.
#[derive(Default)]
struct Paragraph<'a>(Vec<(usize, &'a str)>);

impl Paragraph<'_> {
    /// The sentences, each with the number of the line that it begins on.
    fn sentences(&self) -> Vec<(usize, String)> {
        let mut sentences: Vec<(usize, String)> = Vec::new();
        let mut ended = true;
        for &(line, text) in &self.0 {
            for word in text.split_whitespace() {
                match sentences.last_mut() {
                    // A full stop inside of a sentence ("e.g.") is followed by a small letter.
                    Some((_, sentence)) if !(ended && begins_sentence(word)) => {
                        sentence.push(' ');
                        sentence.push_str(word);
                    }
                    _ => sentences.push((line, word.to_owned())),
                }
                ended = word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '!', '?']);
            }
        }
        sentences
    }
}

/// The paragraphs of documentation in a file; code, headings and tables are none.
fn paragraphs(content: &str) -> Vec<Paragraph<'_>> {
    let mut paragraphs = vec![Paragraph::default()];
    let mut fenced = false;
    for (index, line) in content.lines().enumerate() {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let text = text.map(str::trim);
        let fence = text.is_some_and(|text| text.starts_with("```"));
        fenced = text.is_some() && fenced ^ fence;
        match text {
            Some(text)
                if !fenced && !fence && !text.is_empty() && !text.starts_with(['#', '|']) =>
            {
                let item = text.trim_start_matches(|c: char| c.is_ascii_digit());
                let item = item.strip_prefix(". ").or_else(|| text.strip_prefix(['-', '*']));
                if item.is_some() {
                    paragraphs.push(Paragraph::default());
                }
                let last = paragraphs.last_mut().expect("there is one from the start");
                last.0.push((index + 1, item.unwrap_or(text)));
            }
            _ => paragraphs.push(Paragraph::default()),
        }
    }
    paragraphs
}

fn begins_sentence(word: &str) -> bool {
    let first = word.trim_start_matches(['(', '"', '*', '_', '[']).chars().next();
    first.is_some_and(|c| c.is_uppercase() || c == '`')
}

/// Whether `sentence` begins with the words of `opening`.
fn opens(sentence: &str, opening: &str) -> bool {
    let sentence = sentence.trim_start_matches(['(', '"', '*', '_']);
    let rest = sentence.strip_prefix(opening);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(content: &str) -> Count {
        let mut count = Count::default();
        count.add("a.rs", content);
        count
    }

    #[test]
    fn every_sentence_counts() {
        let found =
            count("/// Bytes sent. What was\n/// lost. The\n/// same of reads (e.g. f32).\n");
        assert_eq!(found.sentences, 3);
        assert_eq!(
            found.found,
            ["a.rs:1: What was lost.", "a.rs:2: The same of reads (e.g. f32)."]
        );
        assert!((found.percent() - 66.7).abs() < 0.1);
    }

    #[test]
    fn paragraphs_and_items_of_lists_begin_sentences() {
        let found = count("//! Links:\n//! - how many\n//! - Which of them\n//!\n//! 1. Its end");
        assert_eq!((found.sentences, found.found.len()), (4, 2));
    }

    #[test]
    fn code_headings_and_longer_words_are_free() {
        let found = count("/// # What\n/// ```\n/// What\n/// ```\n/// However.\n// What\n");
        assert_eq!((found.sentences, found.found.len()), (1, 0));
    }
}

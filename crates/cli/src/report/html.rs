//! HTML of pages: the whole page, its sections, and text that is escaped.

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("hover.js");

/// Returns a whole page, whose title and body are HTML.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// Returns text as HTML, also for attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Returns a section of a page.
pub fn section(title: &str, note: &str, body: &str) -> String {
    let note =
        if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>\n") };
    format!("<section>\n<h2>{title}</h2>\n{note}{body}</section>\n")
}

/// Returns a legend of colours: classes of the style, and their names.
pub fn legend(entries: &[(&str, &str)]) -> String {
    let entries: String = entries
        .iter()
        .map(|(class, name)| format!("<span><i class=\"{class}\"></i>{name}</span>"))
        .collect();
    format!("<p class=\"legend\">{entries}</p>\n")
}

//! HTML of pages: whole pages, sections, and escaped text.

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
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Returns a section of a page.
pub fn section(title: &str, note: &str, body: &str) -> String {
    let note =
        if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>\n") };
    format!("<section>\n<h2>{title}</h2>\n{note}{body}</section>\n")
}

/// Returns the head of a page: a line above its title, a lead that is HTML, and figures with names.
pub fn header(title: &str, lead: &str, tiles: &[(String, &str)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let tile =
        |(value, name): &(String, &str)| format!("<div><dd>{value}</dd><dt>{name}</dt></div>\n");
    let tiles: String = tiles.iter().map(tile).collect();
    format!(
        "<header>\n<p class=\"brand\">thinwire {version}</p>\n<h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n<dl class=\"tiles\">\n{tiles}</dl>\n</header>\n"
    )
}

/// Returns a legend of colours: classes of the style, and their names.
pub fn legend(entries: &[(&str, &str)]) -> String {
    let entries: String = entries
        .iter()
        .map(|(class, name)| format!("<span><i class=\"{class}\"></i>{name}</span>"))
        .collect();
    format!("<p class=\"legend\">{entries}</p>\n")
}

/// Returns a table from the names of its columns and its rows, whose first cell is a name.
pub fn table<'a, T: AsRef<str>>(
    header: impl IntoIterator<Item = &'a str>,
    rows: impl IntoIterator<Item = impl IntoIterator<Item = T>>,
) -> String {
    let header: String =
        header.into_iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let row = |row: &mut dyn Iterator<Item = T>| {
        let cells = row.enumerate().map(|(at, cell)| (if at == 0 { "th" } else { "td" }, cell));
        let cell = |(tag, cell): (&str, T)| {
            let cell = cell.as_ref();
            let class = if cell.starts_with(' ') { " class=\"inner\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell.trim()))
        };
        let cells: String = cells.map(cell).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.into_iter().map(|cells| row(&mut cells.into_iter())).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

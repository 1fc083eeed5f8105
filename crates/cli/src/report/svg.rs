//! Pieces of drawings as inline SVG, whose classes are those of the page's style.

use super::html::escape;

/// Pixels of a drawing's width.
pub const WIDTH: f64 = 960.0;

/// Returns a drawing of what is called `name`.
pub fn drawing(name: &str, height: f64, body: &str) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}\">\n{body}</svg>\n"
    )
}

/// Returns a bar at x, y of a width and a height, with a text under the pointer.
pub fn rect(class: &str, [x, y, width, height]: [f64; 4], title: &str) -> String {
    let title = escape(title);
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"><title>{title}</title></rect>\n"
    )
}

/// Returns a text that has its start, middle or end at x.
pub fn text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> String {
    let text = escape(text);
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n"
    )
}

/// Returns a line from one point to another.
pub fn line(class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], title: &str) -> String {
    let title =
        if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
    format!(
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\">{title}</line>\n"
    )
}

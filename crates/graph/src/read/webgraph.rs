//! WebGraph's ASCII format: the number of vertices, then a line with the successors of each.

use std::io::BufRead;

use super::edges::{Edges, count_vertices};
use super::scan::Scan;
use crate::error::Error;

/// Reads lists of successors; a vertex without any has an empty line.
pub(super) fn edges(stream: impl BufRead, named: Option<u32>) -> Result<Edges, Error> {
    let mut scan = Scan::new(stream);
    let count = scan.number("the number of vertices")?;
    scan.end_line()?;
    let (mut pairs, mut source) = (Vec::new(), 0);
    while u64::from(source) < count {
        loop {
            match scan.skip_blanks()? {
                None => {
                    let found = format!("the end of the file at the list of vertex {source}");
                    return Err(scan.error(&found, &format!("{count} lists")));
                }
                Some(b'\n') => break,
                Some(_) => pairs.push((source, successor(&mut scan, count)?)),
            }
        }
        scan.end_line()?;
        source += 1;
    }
    if scan.skip_comments(b'#')? {
        return Err(scan.error("another list", &format!("{count} lists")));
    }
    let vertices = count_vertices(count, pairs.len(), named)?;
    Ok(Edges { vertices, pairs, weights: None, ..Edges::default() })
}

fn successor<R: BufRead>(scan: &mut Scan<R>, count: u64) -> Result<u32, Error> {
    let vertex = scan.vertex("a successor")?;
    match u64::from(vertex) < count {
        true => Ok(vertex),
        false => Err(scan.error(&format!("vertex {vertex}"), &format!("vertices of 0..{count}"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::read::{Edges, Format, Options, edges_of_bytes};

    fn read(text: &str) -> Result<Edges, String> {
        let edges = edges_of_bytes(text.as_bytes(), Format::WebGraph, Options::default());
        edges.map_err(|error| error.to_string())
    }

    #[test]
    fn lists_may_be_empty() {
        let expected = Edges {
            vertices: 3,
            pairs: vec![(0, 1), (0, 2), (2, 0)],
            weights: None,
            ..Edges::default()
        };
        assert_eq!(read("3\n1 2 \n\n0\n").unwrap(), expected);
    }

    #[test]
    fn errors_have_the_line_and_what_was_expected() {
        for (text, message) in [
            ("", "line 1: the end of the file, expected the number of vertices"),
            ("2\n1\n", "line 3: the end of the file at the list of vertex 1, expected 2 lists"),
            ("2\n1\n0", "line 3: the end of the file at the list of vertex 1, expected 2 lists"),
            ("1\n0\n0\n", "line 3: another list, expected 1 lists"),
            ("2\n2\n\n", "line 2: vertex 2, expected vertices of 0..2"),
        ] {
            assert_eq!(read(text).unwrap_err(), message);
        }
    }
}

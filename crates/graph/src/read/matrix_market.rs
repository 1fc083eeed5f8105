//! Coordinates of Matrix Market (Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats").

use std::io::BufRead;

use super::edges::{Edges, count_vertices};
use super::scan::Scan;
use crate::error::Error;

const BANNER: &str = "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY'";
/// Longest word of the first line that matters.
const WORD_BYTES_MAX: usize = 32;

/// Reads a square matrix in coordinates from 1 on. An entry of a symmetric matrix is an edge in both
/// directions, unless it is on the diagonal.
pub(super) fn edges(stream: impl BufRead, named: Option<u32>) -> Result<Edges, Error> {
    let mut scan = Scan::new(stream);
    let is_symmetric = read_banner(&mut scan)?;
    if !scan.skip_comments(b'%')? {
        return Err(scan.error("the end of the file", "a line with rows, columns and entries"));
    }
    let rows = scan.number("the number of rows")?;
    let columns = scan.number("the number of columns")?;
    let entries = scan.number("the number of entries")?;
    scan.end_line()?;
    let (mut pairs, mut found) = (Vec::new(), 0);
    while scan.skip_comments(b'%')? {
        if found == entries {
            return Err(scan.error("another entry", &format!("{entries} entries")));
        }
        found += 1;
        let source = coordinate(&mut scan, "row", rows)?;
        let destination = coordinate(&mut scan, "column", columns)?;
        scan.word(0)?;
        scan.word(0)?;
        scan.end_line()?;
        pairs.push((source, destination));
        if is_symmetric && source != destination {
            pairs.push((destination, source));
        }
    }
    if found < entries {
        let expected = format!("{entries} entries");
        return Err(scan.error(&format!("the end of the file after {found} entries"), &expected));
    }
    let vertices = count_vertices(rows.max(columns), pairs.len(), named)?;
    Ok(Edges { vertices, pairs })
}

/// Reads the first line. Returns whether half of the matrix stands for all of it.
fn read_banner<R: BufRead>(scan: &mut Scan<R>) -> Result<bool, Error> {
    let mut words = Vec::new();
    for _ in 0..5 {
        words.push(scan.word(WORD_BYTES_MAX)?.to_lowercase());
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_symmetric = match words[..] {
        ["%%matrixmarket", "matrix", "coordinate", _, "general"] => false,
        [
            "%%matrixmarket",
            "matrix",
            "coordinate",
            _,
            "symmetric" | "skew-symmetric" | "hermitian",
        ] => true,
        _ => return Err(scan.error(&format!("'{}'", words.join(" ")), BANNER)),
    };
    scan.end_line()?;
    Ok(is_symmetric)
}

/// Reads a coordinate of `1..=limit` as a vertex from 0 on.
fn coordinate<R: BufRead>(scan: &mut Scan<R>, what: &str, limit: u64) -> Result<u32, Error> {
    let number = scan.number(what)?;
    match u32::try_from(number) {
        Ok(number) if number > 0 && u64::from(number) <= limit => Ok(number - 1),
        _ => Err(scan.error(&format!("{what} {number}"), &format!("1 to {limit}"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::read::{Edges, Format, Options, edges_of_bytes};

    fn read(text: &str) -> Result<Edges, String> {
        let edges = edges_of_bytes(text.as_bytes(), Format::MatrixMarket, Options::default());
        edges.map_err(|error| error.to_string())
    }

    #[test]
    fn a_symmetric_matrix_has_both_directions() {
        let text = "%%MatrixMarket matrix coordinate real SYMMETRIC\n% a comment\n\n3 3 2\n2 1 0.5\n3 3 1\n";
        let expected = Edges { vertices: 3, pairs: vec![(1, 0), (0, 1), (2, 2)] };
        assert_eq!(read(text).unwrap(), expected);
        let text = "%%MatrixMarket matrix coordinate pattern general\n2 3 1\n1 3";
        assert_eq!(read(text).unwrap(), Edges { vertices: 3, pairs: vec![(0, 2)] });
    }

    #[test]
    fn errors_have_the_line_and_what_was_expected() {
        let banner = "%%MatrixMarket matrix coordinate pattern general\n";
        for (text, message) in [
            (
                "0 1\n",
                "line 1: '0 1   ', expected a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY'",
            ),
            (banner, "line 2: the end of the file, expected a line with rows, columns and entries"),
            (&format!("{banner}2 2 1\n3 1\n"), "line 3: row 3, expected 1 to 2"),
            (&format!("{banner}2 2 1\n1 0\n"), "line 3: column 0, expected 1 to 2"),
            (&format!("{banner}2 2 1\n1 1\n1 2\n"), "line 4: another entry, expected 1 entries"),
            (
                &format!("{banner}2 2 2\n1 1\n"),
                "line 4: the end of the file after 1 entries, expected 2 entries",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message);
        }
        assert!(read(&format!("{banner}4000000000 4000000000 0\n")).is_err());
    }
}

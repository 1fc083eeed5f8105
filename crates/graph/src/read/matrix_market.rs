//! Coordinates of Matrix Market (Boisvert, Pozo and Remington, "The Matrix Market Exchange Formats").

use std::io::BufRead;

use super::edges::{Edges, count_vertices, ensure_square};
use super::options::{Options, Weighting};
use super::scan::Scan;
use crate::error::Error;

const BANNER: &str = "a line '%%MatrixMarket matrix coordinate FIELD SYMMETRY'";
/// Symmetries of a matrix, for most of which the file has only half of the entries.
const SYMMETRIES: [&str; 4] = ["general", "symmetric", "skew-symmetric", "hermitian"];
/// Longest word of the first line that is compared.
const WORD_BYTES_MAX: usize = 32;

/// Content of the first line.
struct Banner {
    /// Whether half of the matrix determines all of it.
    is_symmetric: bool,
    has_weights: bool,
}

/// Reads a square matrix in coordinates, counted from 1. An entry of a symmetric matrix is an edge in both
/// directions, unless it is on the diagonal. Its value is the weight of the edge.
pub(super) fn edges(stream: impl BufRead, options: Options) -> Result<Edges, Error> {
    let mut scan = Scan::new(stream);
    let banner = read_banner(&mut scan, options.weights)?;
    if !scan.skip_comments(b'%')? {
        return Err(scan.error("the end of the file", "a line with rows, columns and entries"));
    }
    let rows = scan.number("the number of rows")?;
    let columns = scan.number("the number of columns")?;
    let entries = scan.number("the number of entries")?;
    scan.end_line()?;
    ensure_square(rows, columns)?;
    let (mut pairs, mut found) = (Vec::new(), 0);
    let mut weights = banner.has_weights.then(Vec::new);
    while scan.skip_comments(b'%')? {
        if found == entries {
            return Err(scan.error("another entry", &format!("{entries} entries")));
        }
        found += 1;
        let source = coordinate(&mut scan, "row", rows)?;
        let destination = coordinate(&mut scan, "column", columns)?;
        let is_mirrored = banner.is_symmetric && source != destination;
        match &mut weights {
            Some(weights) => {
                let weight = scan.weight()?;
                weights.extend(std::iter::repeat_n(weight, 1 + usize::from(is_mirrored)));
            }
            None => {
                scan.word(0)?;
                scan.word(0)?;
            }
        }
        scan.end_line()?;
        pairs.push((source, destination));
        if is_mirrored {
            pairs.push((destination, source));
        }
    }
    if found < entries {
        let expected = format!("{entries} entries");
        return Err(scan.error(&format!("the end of the file after {found} entries"), &expected));
    }
    let vertices = count_vertices(rows, pairs.len(), options.vertices)?;
    Ok(Edges { vertices, pairs, weights, ..Edges::default() })
}

/// Reads the first line.
fn read_banner<R: BufRead>(scan: &mut Scan<R>, weighting: Weighting) -> Result<Banner, Error> {
    let mut words = Vec::new();
    for _ in 0..5 {
        words.push(scan.word(WORD_BYTES_MAX)?.to_lowercase());
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (field, symmetry) = match words[..] {
        ["%%matrixmarket", "matrix", "coordinate", field, symmetry]
            if SYMMETRIES.contains(&symmetry) =>
        {
            (field, symmetry)
        }
        _ => return Err(scan.error(&format!("'{}'", words.join(" ")), BANNER)),
    };
    let has_weights = weighting == Weighting::Keep && field != "pattern";
    if has_weights && (symmetry == "skew-symmetric" || !["real", "integer"].contains(&field)) {
        let found = format!("values of '{field} {symmetry}'");
        let hint = "--unweighted imports the edges without their values";
        return Err(scan.error(&found, "real or integer ones of 0 and more").with_hint(hint));
    }
    scan.end_line()?;
    Ok(Banner { is_symmetric: symmetry != "general", has_weights })
}

/// Reads a coordinate of `1..=limit` as a vertex, counted from 0.
fn coordinate<R: BufRead>(scan: &mut Scan<R>, what: &str, limit: u64) -> Result<u32, Error> {
    let number = scan.number(what)?;
    match u32::try_from(number) {
        Ok(number) if number > 0 && u64::from(number) <= limit => Ok(number - 1),
        _ => Err(scan.error(&format!("{what} {number}"), &format!("1 to {limit}"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::read::{Edges, Format, Options, Weighting, edges_of_bytes};

    fn read_with(text: &str, weights: Weighting) -> Result<Edges, String> {
        let options = Options { weights, ..Options::default() };
        let edges = edges_of_bytes(text.as_bytes(), Format::MatrixMarket, options);
        edges.map_err(|error| error.to_string())
    }

    fn read(text: &str) -> Result<Edges, String> {
        read_with(text, Weighting::Keep)
    }

    #[test]
    fn a_symmetric_matrix_has_both_directions() {
        let text = "%%MatrixMarket matrix coordinate real SYMMETRIC\n% a comment\n\n3 3 2\n2 1 0.5\n3 3 1\n";
        let bare = Edges {
            vertices: 3,
            pairs: vec![(1, 0), (0, 1), (2, 2)],
            weights: None,
            ..Edges::default()
        };
        let weights = Some(vec![0.5, 0.5, 1.0]);
        assert_eq!(read(text).unwrap(), Edges { weights, ..bare.clone() });
        assert_eq!(read_with(text, Weighting::Drop).unwrap(), bare);
        let text = "%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 3";
        let expected =
            Edges { vertices: 3, pairs: vec![(0, 2)], weights: None, ..Edges::default() };
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn values_that_are_no_weights_are_refused_or_left_out() {
        let matrix = |kind: &str, entry: &str| {
            format!("%%MatrixMarket matrix coordinate {kind}\n2 2 1\n{entry}\n")
        };
        let expected = "expected real or integer ones of 0 and more";
        for (text, message) in [
            (
                matrix("real general", "1 2 -1"),
                "line 3: weight -1, expected a finite number of at least 0".to_owned(),
            ),
            (
                matrix("integer general", "1 2"),
                "line 3: the end of the line, expected the weight of an edge".to_owned(),
            ),
            (
                matrix("complex hermitian", "1 2 1 0"),
                format!("line 1: values of 'complex hermitian', {expected}"),
            ),
            (
                matrix("real skew-symmetric", "1 2 1"),
                format!("line 1: values of 'real skew-symmetric', {expected}"),
            ),
        ] {
            assert_eq!(read(&text).unwrap_err(), message);
            assert_eq!(read_with(&text, Weighting::Drop).unwrap().pairs[0], (0, 1));
        }
        let text = matrix("real general", "1 2 1 1");
        assert_eq!(read(&text).unwrap_err(), "line 3: '1', expected the end of the line");
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
            (&format!("{banner}3 5 1\n3 1\n"), "a matrix of 3 x 5, expected a square one"),
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

//! Edge lists: a source and a destination per line.

use std::io::BufRead;

use super::edges::{Edges, count_vertices};
use super::options::Options;
use super::scan::Scan;
use crate::error::Error;

const SOURCE: &str = "the source of an edge";
const DESTINATION: &str = "the destination of an edge";

/// Reads lines of two vertices between blanks or commas, or of more columns where the options name two of
/// them. Lines that begin with `#` are comments, and a first line that begins with a letter is a header.
pub(super) fn edges(stream: impl BufRead, options: Options) -> Result<Edges, Error> {
    options.check()?;
    let (mut scan, mut pairs, mut found) = (Scan::new(stream), Vec::new(), 0);
    let mut is_first = true;
    while scan.skip_comments(b'#')? {
        if is_first && scan.peek()?.is_some_and(|byte| byte.is_ascii_alphabetic()) {
            scan.skip_line()?;
            is_first = false;
            continue;
        }
        is_first = false;
        let (source, destination) = match options.columns {
            None => only_pair(&mut scan)?,
            Some(columns) => pair_of(&mut scan, columns)?,
        };
        found = found.max(u64::from(source.max(destination)) + 1);
        pairs.push((source, destination));
    }
    let vertices = count_vertices(found, pairs.len(), options.vertices)?;
    Ok(Edges { vertices, pairs })
}

/// Reads a line of two vertices. A third column is refused, since the first one may be the number of the edge.
fn only_pair<R: BufRead>(scan: &mut Scan<R>) -> Result<(u32, u32), Error> {
    let source = scan.vertex(SOURCE)?;
    let destination = scan.vertex(DESTINATION)?;
    match scan.skip_blanks()? {
        None | Some(b'\n') => scan.end_line()?,
        Some(_) => {
            let hint =
                "name the columns of source and destination; --columns 1,2 reads the first two";
            return Err(scan.error("a third column", "two columns").with_hint(hint));
        }
    }
    Ok((source, destination))
}

/// Reads the vertices of two columns and passes the others.
fn pair_of<R: BufRead>(scan: &mut Scan<R>, columns: (u32, u32)) -> Result<(u32, u32), Error> {
    let (mut source, mut destination) = (0, 0);
    for column in 1..=columns.0.max(columns.1) {
        match column {
            column if column == columns.0 => source = scan.vertex(SOURCE)?,
            column if column == columns.1 => destination = scan.vertex(DESTINATION)?,
            _ => scan.skip_column(column)?,
        }
    }
    scan.skip_line()?;
    Ok((source, destination))
}

#[cfg(test)]
mod tests {
    use crate::read::{Edges, Format, Options, edges_of_bytes};

    fn read_with(text: &str, options: Options) -> Result<Edges, String> {
        let edges = edges_of_bytes(text.as_bytes(), Format::EdgeList, options);
        edges.map_err(|error| error.to_string())
    }

    fn read(text: &str) -> Result<Edges, String> {
        read_with(text, Options::default())
    }

    fn read_columns(text: &str, columns: (u32, u32)) -> Result<Edges, String> {
        read_with(text, Options { columns: Some(columns), ..Options::default() })
    }

    #[test]
    fn texts_of_all_kinds_are_read() {
        let expected = Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)] };
        for text in [
            "0 3\n2 1\n",
            "# Nodes: 4\n# FromNodeId\tToNodeId\r\n0\t3\r\n\n2\t1",
            "id_1,id_2\n0,3\n2,1\n",
            "  0 3\n2 1 \n",
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn further_columns_are_read_only_by_name() {
        let expected = Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)] };
        for (text, columns) in [
            ("id,src,dst\n7,0,3\n8,2,1\n", (2, 3)),
            ("a,b,weight\n0,3,0.5\n2,1,-1e3", (1, 2)),
            ("3\tx y\t0\n1\tx y\t2\n", (4, 1)),
        ] {
            assert_eq!(read_columns(text, columns).unwrap(), expected, "{text}");
            let line = if text.contains("src") || text.contains("weight") { 2 } else { 1 };
            let refused = read(text).unwrap_err();
            assert!(refused.starts_with(&format!("line {line}: ")), "{refused}");
        }
        assert_eq!(read("0 1 2\n").unwrap_err(), "line 1: a third column, expected two columns");
        for (text, columns, message) in [
            ("0 1\n", (1, 3), "line 1: the end of the line, expected the destination of an edge"),
            ("0\n", (3, 1), "line 1: the end of the line, expected column 2"),
            ("9,,1,2\n", (3, 4), "line 1: two commas, expected a column between them"),
            ("\"a,b\",1,2\n", (2, 3), "line 1: a quotation mark, expected columns without any"),
            ("0 1\n", (1, 1), "columns 1 and 1, expected two different ones from 1 on"),
        ] {
            assert_eq!(read_columns(text, columns).unwrap_err(), message);
        }
    }

    #[test]
    fn a_file_without_edges_needs_a_number_of_vertices() {
        let message = "no edges and no vertices, expected at least one edge";
        for text in ["", "# Nodes: 4\n", "src,dst\n"] {
            assert_eq!(read(text).unwrap_err(), message);
            let named = read_with(text, Options { vertices: Some(2), ..Options::default() });
            assert_eq!(named.unwrap(), Edges { vertices: 2, pairs: vec![] });
        }
    }

    #[test]
    fn errors_have_the_line_and_what_was_expected() {
        for (text, message) in [
            ("0 1\n2\n", "line 2: the end of the line, expected the destination of an edge"),
            ("0 1\n\n2", "line 3: the end of the file, expected the destination of an edge"),
            ("0 1\n2 x\n", "line 2: 'x', expected the destination of an edge"),
            ("0 -1\n", "line 1: '-', expected the destination of an edge"),
            ("0,1\n2,,1\n", "line 2: two commas, expected a column between them"),
            ("0 1\na b\n", "line 2: 'a', expected the source of an edge"),
            ("0 4294967295", "line 1: vertex 4294967295, expected vertices below 4294967295"),
            (
                "0 99999999999999999999",
                "line 1: a number above 2^64, expected the destination of an edge",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message);
        }
        let error = read("0 4294967294\n").unwrap_err();
        assert!(error.starts_with("4294967295 vertices with 1 edges, expected at most 1048640"));
        let few = read_with("0 3\n", Options { vertices: Some(3), ..Options::default() });
        assert_eq!(few.unwrap_err(), "the file has vertex 3, expected vertices of 0..3");
    }
}

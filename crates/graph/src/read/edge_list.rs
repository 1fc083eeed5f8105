//! Edge lists: a source and a destination per line.

use std::io::BufRead;

use super::edges::{Edges, count_vertices};
use super::options::{Columns, Options};
use super::scan::Scan;
use crate::error::Error;

const SOURCE: &str = "the source of an edge";
const DESTINATION: &str = "the destination of an edge";

/// Reads lines of two vertices between blanks or commas, or of more columns where the options name those to
/// read. Lines that begin with `#` are comments, and a first line that begins with a letter is a header.
pub(super) fn edges(stream: impl BufRead, options: Options) -> Result<Edges, Error> {
    let columns = options.columns.map(|columns| columns.kept(options.weights));
    columns.map_or(Ok(()), |columns| columns.check())?;
    let (mut scan, mut pairs, mut found) = (Scan::new(stream), Vec::new(), 0);
    let mut weights = columns.and_then(|columns| columns.weight).map(|_| Vec::new());
    let mut is_first = true;
    while scan.skip_comments(b'#')? {
        if is_first && scan.peek()?.is_some_and(|byte| byte.is_ascii_alphabetic()) {
            scan.skip_line()?;
            is_first = false;
            continue;
        }
        is_first = false;
        let (source, destination) = match columns {
            None => only_pair(&mut scan)?,
            Some(columns) => {
                let (pair, weight) = edge_of(&mut scan, columns)?;
                weights.iter_mut().for_each(|weights| weights.push(weight));
                pair
            }
        };
        found = found.max(u64::from(source.max(destination)) + 1);
        pairs.push((source, destination));
    }
    let vertices = count_vertices(found, pairs.len(), options.vertices)?;
    Ok(Edges { vertices, pairs, weights })
}

/// Reads a line of two vertices. A third column is refused, since the first one may be the number of the edge.
fn only_pair<R: BufRead>(scan: &mut Scan<R>) -> Result<(u32, u32), Error> {
    let source = scan.vertex(SOURCE)?;
    let destination = scan.vertex(DESTINATION)?;
    match scan.skip_blanks()? {
        None | Some(b'\n') => scan.end_line()?,
        Some(_) => {
            let hint = "name columns; --columns 1,2 reads the first two, and 1,2,3 weights as well";
            return Err(scan.error("a third column", "two columns").with_hint(hint));
        }
    }
    Ok((source, destination))
}

/// Reads the vertices and the weight, 0 without one, of some columns and passes the others.
fn edge_of<R: BufRead>(scan: &mut Scan<R>, columns: Columns) -> Result<((u32, u32), f32), Error> {
    let (mut source, mut destination, mut weight) = (0, 0, 0.0);
    for column in 1..=columns.last() {
        match column {
            column if column == columns.source => source = scan.vertex(SOURCE)?,
            column if column == columns.destination => destination = scan.vertex(DESTINATION)?,
            column if Some(column) == columns.weight => weight = scan.weight()?,
            _ => scan.skip_column(column, columns.last())?,
        }
    }
    scan.skip_line()?;
    Ok(((source, destination), weight))
}

#[cfg(test)]
mod tests {
    use crate::read::{Columns, Edges, Format, Options, edges_of_bytes};

    fn read_with(text: &str, options: Options) -> Result<Edges, String> {
        let edges = edges_of_bytes(text.as_bytes(), Format::EdgeList, options);
        edges.map_err(|error| error.to_string())
    }

    fn read(text: &str) -> Result<Edges, String> {
        read_with(text, Options::default())
    }

    fn read_columns(text: &str, (source, destination): (u32, u32)) -> Result<Edges, String> {
        let columns = Columns { source, destination, weight: None };
        read_with(text, Options { columns: Some(columns), ..Options::default() })
    }

    #[test]
    fn texts_of_all_kinds_are_read() {
        let expected = Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)], weights: None };
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
        let expected = Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)], weights: None };
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
            ("0\n", (3, 1), "line 1: the end of the line, expected column 2 of 3"),
            ("9,,1,2\n", (3, 4), "line 1: two commas, expected a column between them"),
            ("\"a,b\",1,2\n", (2, 3), "line 1: a quotation mark, expected columns without any"),
            (
                "0 1\n",
                (1, 1),
                "columns of source 1, destination 1, expected different ones from 1 on",
            ),
        ] {
            assert_eq!(read_columns(text, columns).unwrap_err(), message);
        }
    }

    #[test]
    fn weights_are_those_of_the_named_column() {
        let read = |text: &str, weight| {
            let columns = Some(Columns { source: 1, destination: 2, weight: Some(weight) });
            read_with(text, Options { columns, ..Options::default() })
        };
        let expected =
            Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)], weights: Some(vec![0.5, 1e3]) };
        for (text, column) in
            [("src,dst,w\n0,3,0.5\n2,1,1e3", 3), ("# SNAP\n0\t3\t7\t.5 x\n2\t1\t7\t1000\r\n", 4)]
        {
            assert_eq!(read(text, column).unwrap(), expected, "{text}");
        }
        let long = format!("0 1 {}\n", "0".repeat(65));
        let number = "expected a finite number of at least 0";
        for (text, message) in [
            ("0 1 2\n1 0 -0.5\n", format!("line 2: weight -0.5, {number}")),
            ("0 1 NaN", format!("line 1: weight NaN, {number}")),
            ("0 1 inf", format!("line 1: weight inf, {number}")),
            ("0,1,1e39", format!("line 1: weight 1e39, {number}")),
            (
                "0 1 2\n1 0\n",
                "line 2: the end of the line, expected the weight of an edge".to_owned(),
            ),
            (
                "0 1 2\n1 0",
                "line 2: the end of the file, expected the weight of an edge".to_owned(),
            ),
            ("0 1 2\n1 0 x\n", "line 2: 'x', expected the weight of an edge".to_owned()),
            (&long, "line 1: a longer weight, expected at most 64 bytes".to_owned()),
        ] {
            assert_eq!(read(text, 3).unwrap_err(), message);
        }
        let error = read("0 1 2\n", 2).unwrap_err();
        assert!(
            error.starts_with("columns of source 1, destination 2, weight 2, expected"),
            "{error}"
        );
    }

    #[test]
    fn a_file_without_edges_needs_a_number_of_vertices() {
        let message = "no edges and no vertices, expected at least one edge";
        for text in ["", "# Nodes: 4\n", "src,dst\n"] {
            assert_eq!(read(text).unwrap_err(), message);
            let named = read_with(text, Options { vertices: Some(2), ..Options::default() });
            assert_eq!(named.unwrap(), Edges { vertices: 2, ..Edges::default() });
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

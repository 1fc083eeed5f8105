//! Edge lists: a source and a destination per line.

use std::io::BufRead;

use super::edges::{Edges, count_vertices};
use super::scan::Scan;
use crate::error::Error;

/// Reads lines of two vertices between blanks or commas. Lines that begin with `#` are comments, and a first
/// line that begins with a letter is a header. A third column, which may be a weight, is not kept.
pub(super) fn edges(stream: impl BufRead, named: Option<u32>) -> Result<Edges, Error> {
    let (mut scan, mut pairs, mut found) = (Scan::new(stream), Vec::new(), 0);
    let mut is_first = true;
    while scan.skip_comments(b'#')? {
        if is_first && scan.peek()?.is_some_and(|byte| byte.is_ascii_alphabetic()) {
            scan.skip_line()?;
            is_first = false;
            continue;
        }
        is_first = false;
        let source = scan.vertex("the source of an edge")?;
        let destination = scan.vertex("the destination of an edge")?;
        scan.word(0)?;
        scan.end_line()?;
        found = found.max(u64::from(source.max(destination)) + 1);
        pairs.push((source, destination));
    }
    let vertices = count_vertices(found, pairs.len(), named)?;
    Ok(Edges { vertices, pairs })
}

#[cfg(test)]
mod tests {
    use crate::read::{Edges, Format, edges_of_bytes};

    fn read(text: &str) -> Result<Edges, String> {
        edges_of_bytes(text.as_bytes(), Format::EdgeList, None).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_of_all_kinds_are_read() {
        let expected = Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)] };
        for text in [
            "0 3\n2 1\n",
            "# Nodes: 4\n# FromNodeId\tToNodeId\r\n0\t3\r\n\n2\t1",
            "id_1,id_2\n0,3\n2,1\n",
            "  0 3 0.5\n2 1 -1e3\n",
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        assert_eq!(read("").unwrap(), Edges::default());
    }

    #[test]
    fn errors_have_the_line_and_what_was_expected() {
        for (text, message) in [
            ("0 1\n2\n", "line 2: the end of the line, expected the destination of an edge"),
            ("0 1\n\n2", "line 3: the end of the file, expected the destination of an edge"),
            ("0 1\n2 x\n", "line 2: 'x', expected the destination of an edge"),
            ("0 -1\n", "line 1: '-', expected the destination of an edge"),
            ("0 1 2 3\n", "line 1: '3', expected the end of the line"),
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
        let few = edges_of_bytes(b"0 3\n", Format::EdgeList, Some(3)).unwrap_err();
        assert_eq!(few.to_string(), "the file has vertex 3, expected vertices of 0..3");
    }
}

//! Edge lists: a source and a destination per line.

use std::io::BufRead;

use super::edges::{Edges, checked};
use super::lines::Lines;
use super::naming::{Naming, Reason, as_given};
use super::options::{Columns, Header, Numbering, Options};
use crate::error::Error;

const SOURCE: &str = "the source of an edge";
const DESTINATION: &str = "the destination of an edge";
const WEIGHT: &str = "the weight of an edge";
/// Largest length of a weight in bytes.
const WEIGHT_BYTES_MAX: usize = 64;

/// Reads lines of two vertices, separated by blanks or commas. Lines may have more columns if the options
/// name the columns to read. Lines that begin with `#` or `%` are comments.
pub(super) fn edges(stream: impl BufRead, options: Options) -> Result<Edges, Error> {
    let columns = options.columns.map(|columns| columns.kept(options.weights));
    columns.map_or(Ok(()), |columns| columns.check())?;
    let mut reader = Reader {
        lines: Lines::new(stream),
        columns,
        numbering: options.numbering,
        naming: (options.numbering == Numbering::Ids).then(Naming::default),
    };
    let weight = columns.and_then(|columns| columns.weight);
    let (mut pairs, mut weights) = (Vec::new(), weight.map(|_| Vec::new()));
    let (mut is_first, mut doubt) = (true, None);
    while reader.advance(&pairs)? {
        if std::mem::take(&mut is_first) && reader.is_header(options.header) {
            doubt = (options.header == Header::Guessed).then(|| reader.doubt());
            continue;
        }
        pairs.push(reader.pair()?);
        if let (Some(weights), Some(column)) = (&mut weights, weight) {
            weights.push(reader.weight(column)?);
        }
    }
    match (doubt, &reader.naming) {
        // Where ids are texts, names of columns look like an edge.
        (Some(doubt), Some(naming)) if !naming.has_numbers_alone() => Err(doubt),
        _ => Ok(Edges { weights, ..Edges::of_file(pairs, reader.naming, options.vertices)? }),
    }
}

struct Reader<R> {
    lines: Lines<R>,
    /// Columns to read. Without them, lines have two columns.
    columns: Option<Columns>,
    numbering: Numbering,
    /// Numbers of vertices, if vertices have ids.
    naming: Option<Naming>,
}

impl<R: BufRead> Reader<R> {
    /// Reads lines until it finds a line that is not a comment; `edges` are the edges so far. Returns
    /// whether it found one.
    ///
    /// # Errors
    /// If vertices have ids, and a line between edges may be a comment or an edge.
    fn advance(&mut self, edges: &[(u32, u32)]) -> Result<bool, Error> {
        while self.lines.advance()? {
            if !self.lines.is_comment() {
                return Ok(true);
            }
            if self.naming.is_some() && !edges.is_empty() {
                let error = self.lines.error("a comment", "an edge");
                return Err(error.with_hint("put ids that begin with # or % in quotation marks"));
            }
        }
        Ok(false)
    }

    fn is_header(&self, header: Header) -> bool {
        match header {
            Header::Guessed => self.lines.begins_with_letter(),
            Header::Present => true,
            Header::Absent => false,
        }
    }

    /// Returns the error for a first line that may be an edge.
    fn doubt(&self) -> Error {
        let first = self.lines.column(0, "").unwrap_or_default().escape_ascii().to_string();
        let error = self.lines.error(&format!("'{first}'"), "to know whether it is a header");
        error.with_hint(
            "--header yes says that the first line names columns, --header no that it is an edge",
        )
    }

    fn pair(&mut self) -> Result<(u32, u32), Error> {
        let (source, destination) = match self.columns {
            Some(columns) => (columns.source, columns.destination),
            None => (1, 2),
        };
        let pair = (self.vertex(source, SOURCE)?, self.vertex(destination, DESTINATION)?);
        if self.columns.is_none() && self.lines.columns() > 2 {
            // The first one may be the number of the edge.
            let hint = "name columns; --columns 1,2 reads the first two, and 1,2,3 weights as well";
            return Err(self.lines.error("a third column", "two columns").with_hint(hint));
        }
        Ok(pair)
    }

    /// Reads the vertex of a column.
    fn vertex(&mut self, column: u32, what: &str) -> Result<u32, Error> {
        let text = self.lines.column(column as usize - 1, what)?;
        let vertex = match &mut self.naming {
            Some(naming) => naming.number(text),
            None => number(text, what).and_then(|number| as_given(number, self.numbering)),
        };
        let hint = "--relabel numbers vertices that have ids other than the numbers from 0, and keeps their ids";
        vertex.map_err(|(found, expected)| {
            let error = self.lines.error(&found, &expected);
            if self.naming.is_none() { error.with_hint(hint) } else { error }
        })
    }

    fn weight(&self, column: u32) -> Result<f32, Error> {
        let text = self.lines.column(column as usize - 1, WEIGHT)?;
        if text.len() > WEIGHT_BYTES_MAX {
            let expected = format!("at most {WEIGHT_BYTES_MAX} bytes");
            return Err(self.lines.error("a longer weight", &expected));
        }
        let shown = text.escape_ascii().to_string();
        let Ok(weight) = shown.parse() else {
            return Err(self.lines.error(&format!("'{shown}'"), WEIGHT));
        };
        checked(weight, &format!("line {}: weight", self.lines.number()), &shown)
    }
}

/// Reads a whole number of at least 0; `what` is its name in errors.
fn number(text: &[u8], what: &str) -> Result<u64, Reason> {
    let is_number = text.iter().all(u8::is_ascii_digit);
    let shown = || text.escape_ascii().to_string();
    match std::str::from_utf8(text).ok().filter(|_| is_number).map(str::parse) {
        None => Err((format!("'{}'", shown()), what.to_owned())),
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => {
            Err((format!("vertex {}", shown()), "vertices below 4294967295".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::Hint;

    use crate::read::{
        Columns, Edges, Format, Header, Numbering, Options, Orientation, edges_of_bytes,
    };
    use crate::store::Ids;

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
        let expected =
            Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)], weights: None, ..Edges::default() };
        for text in [
            "0 3\n2 1\n",
            "# Nodes: 4\n# FromNodeId\tToNodeId\r\n0\t3\r\n\n2\t1",
            "id_1,id_2\n0,3\n2,1\n",
            "  0 3\n2 1 \n",
            "\u{feff}0 3\n% KONECT\n2 1\n",
            "\u{feff}\"src\",\"dst\"\n\"0\",\"3\"\n\"2\",\"1\"\n",
            "0,3,\n2,1,\n",
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn further_columns_are_read_only_by_name() {
        let expected =
            Edges { vertices: 4, pairs: vec![(0, 3), (2, 1)], weights: None, ..Edges::default() };
        for (text, columns) in [
            ("id,src,dst\n7,0,3\n8,2,1\n", (2, 3)),
            ("a,b,weight\n0,3,0.5\n2,1,-1e3", (1, 2)),
            ("3\tx y\t0\n1\tx y\t2\n", (4, 1)),
            ("id,name,src,dst\n7,a 1,0,3\n8,,2,1\n", (3, 4)),
            ("\"name\",\"src\",\"dst\"\n\"a, b\",\"0\",\"3\"\n\"c\nd\",\"2\",\"1\"\n", (2, 3)),
        ] {
            assert_eq!(read_columns(text, columns).unwrap(), expected, "{text}");
            let line = if text.contains("src") || text.contains("weight") { 2 } else { 1 };
            let refused = read(text).unwrap_err();
            assert!(refused.starts_with(&format!("line {line}: ")), "{refused}");
        }
        assert_eq!(read("0 1 2\n").unwrap_err(), "line 1: a third column, expected two columns");
        for (text, columns, message) in [
            ("0 1\n", (1, 3), "line 1: the end of the line, expected the destination of an edge"),
            ("0\n", (3, 1), "line 1: the end of the line, expected the source of an edge"),
            ("9,,1,2\n", (2, 3), "line 1: an empty column, expected the source of an edge"),
            (
                "0 1\n",
                (1, 1),
                "columns of source 1, destination 1, expected different ones of at least 1",
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
        let expected = Edges {
            vertices: 4,
            pairs: vec![(0, 3), (2, 1)],
            weights: Some(vec![0.5, 1e3]),
            ..Edges::default()
        };
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
                "line 2: the end of the line, expected the weight of an edge".to_owned(),
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
    fn vertices_with_ids_get_numbers_in_the_order_of_their_ids() {
        let read = |text: &str, header| {
            read_with(text, Options { numbering: Numbering::Ids, header, ..Options::default() })
        };
        let guessed = |text: &str| read(text, Header::Guessed);
        let pairs = vec![(1, 0), (2, 0)];
        let bare = Edges { vertices: 3, pairs, ..Edges::default() };
        let numbers = Ids::Numbers(vec![-7, 5, 9_000_000_000_000_000_000]);
        let expected = Edges { ids: Some(numbers), ..bare.clone() };
        for text in ["5 -7\n9000000000000000000 -7", "src,dst\n5,-7\n9000000000000000000,-7\n"] {
            assert_eq!(guessed(text).unwrap(), expected, "{text}");
        }
        // Numbers that are written in another way are texts, and so are all others then.
        let texts = ["10", "7", "x"].map(str::to_owned).to_vec();
        let expected = Edges { ids: Some(Ids::Texts(texts)), ..bare.clone() };
        assert_eq!(guessed("7 10\nx 10\n").unwrap(), expected);
        let ids = |text: &str, header| read(text, header).map(|edges| edges.ids);
        let texts = |texts: &[&str]| {
            Ok(Some(Ids::Texts(texts.iter().map(|it| (*it).to_owned()).collect())))
        };
        assert_eq!(ids("007,7\n", Header::Guessed), texts(&["007", "7"]));
        assert_eq!(
            ids("src,dst\nnew york,\"#1, é\"\n", Header::Present),
            texts(&["#1, é", "new york"])
        );
        assert_eq!(ids("bob ann\n", Header::Absent), texts(&["ann", "bob"]));
        let doubt = "line 1: 'bob', expected to know whether it is a header";
        assert_eq!(guessed("bob ann\ncy dan\n").unwrap_err(), doubt);
        let error = guessed("1 2\n#3 4\n").unwrap_err();
        assert_eq!(error, "line 2: a comment, expected an edge");
        assert_eq!(
            guessed("").unwrap_err(),
            "no edges and no vertices, expected at least one edge"
        );
    }

    #[test]
    fn numbers_from_1_on_are_noticed_and_read() {
        let noticed = read("# 1\n1 2\n2 3\n").unwrap();
        assert_eq!((noticed.vertices, noticed.seems_one_based), (4, true));
        assert!(!read("0 1\n").unwrap().seems_one_based && !read("2 3\n").unwrap().seems_one_based);
        let from_one = Options { numbering: Numbering::FromOne, ..Options::default() };
        let expected = Edges { vertices: 3, pairs: vec![(0, 1), (1, 2)], ..Edges::default() };
        assert_eq!(read_with("1 2\n2 3\n", from_one).unwrap(), expected);
        let error = read_with("1 2\n0 3\n", from_one).unwrap_err();
        assert_eq!(error, "line 2: vertex 0, expected vertices numbered from 1");
        let few = Options { vertices: Some(3), ..Options::default() };
        let error = edges_of_bytes(b"1 2\n2 3\n", Format::EdgeList, few).unwrap_err();
        assert!(error.hint().unwrap().starts_with("--one-based"));
    }

    #[test]
    fn texts_in_utf_16_and_options_of_other_formats_are_refused() {
        let error = edges_of_bytes(b"\xff\xfe0\x00", Format::EdgeList, Options::default());
        assert_eq!(error.unwrap_err().to_string(), "text in UTF-16, expected UTF-8");
        let from_one = Options { numbering: Numbering::FromOne, ..Options::default() };
        let error = edges_of_bytes(b"1\n\n", Format::WebGraph, from_one).unwrap_err().to_string();
        let expected = "other numbers of vertices of a .graph-txt file, expected an edge list or an edge index";
        assert_eq!(error, expected);
        let said = Options { orientation: Some(Orientation::In), ..Options::default() };
        let error = edges_of_bytes(b"0 1\n", Format::EdgeList, said).unwrap_err().to_string();
        assert_eq!(
            error,
            "an orientation of a .txt file, expected an archive with indptr and indices"
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
            ("0 1\n\n2", "line 3: the end of the line, expected the destination of an edge"),
            ("0 1\n2 x\n", "line 2: 'x', expected the destination of an edge"),
            ("0 -1\n", "line 1: '-1', expected the destination of an edge"),
            ("0,1\n2,,1\n", "line 2: an empty column, expected the destination of an edge"),
            ("0;1\n", "line 1: '0;1', expected the source of an edge"),
            ("0 1\na b\n", "line 2: 'a', expected the source of an edge"),
            ("0 4294967295", "line 1: vertex 4294967295, expected vertices below 4294967295"),
            (
                "0 99999999999999999999",
                "line 1: vertex 99999999999999999999, expected vertices below 4294967295",
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

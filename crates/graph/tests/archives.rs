//! Readers of NumPy's arrays and of compressed files.

use std::fs;
use std::io::{Cursor, Write};

use thinwire_graph::Ids;
use thinwire_graph::read::{
    self, Edges, Format, Numbering, Options, Orientation, Weighting, edges_of_bytes,
};
use thinwire_wire::Hint;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

fn npy(dtype: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), values].concat()
}

fn int32(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("<i4", &format!("({},)", values.len()), &bytes)
}

fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Reads an archive, in which lists without a format are of out-neighbours.
fn read_npz(arrays: &[(&str, Vec<u8>)]) -> Result<Edges, String> {
    let has = |name: &str| arrays.iter().any(|(it, _)| *it == name);
    let orientation = (has("indptr") && !has("format")).then_some(Orientation::Out);
    let options = Options { orientation, ..Options::default() };
    edges_of_bytes(&npz(arrays), Format::Npz, options).map_err(|error| error.to_string())
}

#[test]
fn sparse_matrices_of_all_kinds_are_read() {
    let expected = Edges {
        vertices: 3,
        pairs: vec![(0, 1), (0, 2), (2, 0)],
        weights: None,
        ..Edges::default()
    };
    let csr = [("indptr", int32(&[0, 2, 2, 3])), ("indices", int32(&[1, 2, 0]))];
    assert_eq!(read_npz(&csr).unwrap(), expected);
    let csc = [csr[0].clone(), csr[1].clone(), ("format", npy("|S3", "()", b"csc"))];
    let turned = vec![(1, 0), (2, 0), (0, 2)];
    assert_eq!(
        read_npz(&csc).unwrap(),
        Edges { vertices: 3, pairs: turned, weights: None, ..Edges::default() }
    );
    let coo = [("row", int32(&[0, 0, 2])), ("col", int32(&[1, 2, 0])), ("shape", int32(&[3, 3]))];
    assert_eq!(read_npz(&coo).unwrap(), expected);
    let bytes: Vec<u8> = [0_i64, 0, 2, 1, 2, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let index = npy("<i8", "(2, 3)", &bytes);
    assert_eq!(edges_of_bytes(&index, Format::Npy, Options::default()).unwrap(), expected);
    assert_eq!(read_npz(&[("edge_index", index)]).unwrap(), expected);
}

#[test]
fn whose_lists_a_matrix_has_is_in_its_format_or_asked() {
    let lists = [("indptr", int32(&[0, 2, 2, 3])), ("indices", int32(&[1, 2, 0]))];
    let format = |name: &[u8]| [&lists[..], &[("format", npy("|S3", "()", name))]].concat();
    let index = [("edge_index", npy("<i4", "(2, 1)", &[0; 8]))];
    let coo = [("row", int32(&[0])), ("col", int32(&[1]))];
    let (out, turned) = (vec![(0, 1), (0, 2), (2, 0)], vec![(1, 0), (2, 0), (0, 2)]);
    let read = |arrays: &[(&str, Vec<u8>)], orientation| {
        let options = Options { orientation, ..Options::default() };
        let edges = edges_of_bytes(&npz(arrays), Format::Npz, options);
        edges
            .map(|edges| edges.pairs)
            .map_err(|error| (error.to_string(), error.hint().map(str::to_owned)))
    };
    assert_eq!(read(&lists, Some(Orientation::Out)).unwrap(), out);
    assert_eq!(read(&lists, Some(Orientation::In)).unwrap(), turned);
    assert_eq!(read(&format(b"csr"), Some(Orientation::Out)).unwrap(), out);
    assert_eq!(read(&format(b"csc"), None).unwrap(), turned);
    let (error, hint) = read(&lists, None).unwrap_err();
    let expected = "indptr and indices without a format, expected an orientation";
    assert_eq!(error, expected);
    assert!(hint.unwrap().starts_with("--orientation in"));
    let error = read(&format(b"csr"), Some(Orientation::In)).unwrap_err().0;
    assert_eq!(error, "orientation in of a matrix of format 'csr', expected out");
    assert!(read(&index, Some(Orientation::In)).unwrap_err().0.ends_with("expected none"));
    assert!(read(&coo, Some(Orientation::In)).unwrap_err().0.ends_with("expected none"));
}

#[test]
fn an_index_may_have_ids_of_64_bits() {
    let ids = [i64::MIN, 3, 1 << 40, 3].map(i64::to_le_bytes).concat();
    let index = npy("<i8", "(2, 2)", &ids);
    let options = Options { numbering: Numbering::Ids, ..Options::default() };
    let edges = edges_of_bytes(&index, Format::Npy, options).unwrap();
    assert_eq!((edges.vertices, &edges.pairs[..]), (3, &[(0, 2), (1, 1)][..]));
    assert_eq!(edges.ids, Some(Ids::Numbers(vec![i64::MIN, 3, 1 << 40])));
    let index = npy("<i8", "(2, 1)", &[1_i64, 1 << 40].map(i64::to_le_bytes).concat());
    let error = edges_of_bytes(&index, Format::Npy, Options::default()).unwrap_err();
    let expected = "vertex 1099511627776 at position 1, expected vertices below 4294967295";
    assert_eq!(error.to_string(), expected);
    assert!(error.hint().unwrap().starts_with("--relabel"));
    let lists = npz(&[("indptr", int32(&[0, 1])), ("indices", int32(&[0]))]);
    let error = edges_of_bytes(&lists, Format::Npz, options).unwrap_err().to_string();
    assert_eq!(error, "other numbers of vertices of a matrix, expected an edge list or edge_index");
}

#[test]
fn weights_of_matrices_and_indices_are_read() {
    let reals: Vec<u8> = [0.5_f64, 2.0, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let data = ("data", npy("<f8", "(3,)", &reals));
    let csr = [("indptr", int32(&[0, 2, 2, 3])), ("indices", int32(&[1, 2, 0])), data.clone()];
    let coo = [("row", int32(&[0, 0, 2])), ("col", int32(&[1, 2, 0])), data.clone()];
    let csc = [&csr[..], &[("format", npy("|S3", "()", b"csc"))]].concat();
    let index = npy("<i4", "(2, 3)", &[0_u32, 0, 2, 1, 2, 0].map(u32::to_le_bytes).concat());
    let index = [("edge_index", index), ("edge_weight", data.1.clone())];
    for arrays in [&csr[..], &coo, &csc, &index] {
        let edges = read_npz(arrays).unwrap();
        assert_eq!(edges.weights, Some(vec![0.5, 2.0, 0.0]));
        let (graph, weights) = edges.weighted().unwrap();
        assert_eq!(graph.edges(), 3);
        assert_eq!(weights.unwrap().values().iter().sum::<f32>(), 2.5);
    }
    let orientation = Some(Orientation::Out);
    let dropped = Options { weights: Weighting::Drop, orientation, ..Options::default() };
    assert_eq!(edges_of_bytes(&npz(&csr), Format::Npz, dropped).unwrap().weights, None);
    let with = |array: Vec<u8>| {
        let csr = [("indptr", int32(&[0, 1])), ("indices", int32(&[0])), ("data", array)];
        read_npz(&csr).unwrap_err()
    };
    let at_least = "expected a finite number of at least 0";
    assert_eq!(with(int32(&[-3])), format!("array data: weight of entry 0 is -3, {at_least}"));
    let nan = f32::NAN.to_le_bytes();
    let message = format!("array data: weight of entry 0 is NaN, {at_least}");
    assert_eq!(with(npy("<f4", "(1,)", &nan)), message);
    let message = "array data: 2 numbers of int32, expected 1 weights, one per edge";
    assert_eq!(with(int32(&[1, 1])), message);
    let message = "array data: 1 numbers of text, expected 1 weights, one per edge";
    assert_eq!(with(npy("|S3", "()", b"abc")), message);
}

#[test]
fn a_flipped_bit_and_further_bytes_are_noticed() {
    let index = npy("<i4", "(2, 1)", &[1, 0, 0, 0, 2, 0, 0, 0]);
    let mut bytes = npz(&[("edge_index", [&index[..], b"more"].concat())]);
    let read = |bytes: &[u8]| edges_of_bytes(bytes, Format::Npz, Options::default());
    let error = read(&bytes).unwrap_err().to_string();
    assert_eq!(error, "array edge_index: extra bytes after its numbers, expected the end");
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    archive.start_file("edge_index.npy", options).unwrap();
    archive.write_all(&index).unwrap();
    bytes = archive.finish().unwrap().into_inner();
    read(&bytes).unwrap();
    let at = bytes.windows(index.len()).position(|window| window == index).unwrap();
    bytes[at + index.len() - 4] ^= 1;
    let error = read(&bytes).unwrap_err().to_string();
    assert_eq!(error, "array edge_index: Invalid checksum");
}

#[test]
fn archives_that_are_no_graph_are_refused() {
    let csr = |offsets: &[i32], columns: &[i32]| {
        read_npz(&[("indptr", int32(offsets)), ("indices", int32(columns))]).unwrap_err()
    };
    assert_eq!(
        csr(&[0, 2, 1], &[0, 1]),
        "row 1 goes from 2 to 1, expected it to begin at 2 and end at 2 or before"
    );
    assert_eq!(csr(&[0, 1], &[0, 0]), "the rows end at 1, expected 2, the length of indices");
    assert_eq!(csr(&[0, 1, 2], &[0, 2]), "entry 1 has vertex 2, expected vertices of 0..2");
    assert_eq!(csr(&[0, 1, 2], &[0, -1]), "a negative number at position 1");
    let with = |name: &'static str, array: Vec<u8>| {
        let csr = [("indptr", int32(&[0, 1])), ("indices", int32(&[0])), (name, array)];
        read_npz(&csr).unwrap_err()
    };
    let message = "a matrix of format 'bsr', expected csr, csc or coo";
    assert_eq!(with("format", npy("|S3", "()", b"bsr")), message);
    assert_eq!(with("shape", int32(&[1, 5])), "a matrix of 1 x 5, expected a square one");
    let other = read_npz(&[("x", int32(&[1]))]).unwrap_err();
    assert!(
        other.starts_with("an archive with x.npy, expected arrays indptr and indices"),
        "{other}"
    );
    let long = npy("<i4", "(9000000000,)", &[0; 8]);
    let error = read_npz(&[("indptr", long), ("indices", int32(&[]))]).unwrap_err();
    assert_eq!(error, "array indptr: an array that ends after 8 bytes, expected 36000000000");
    for (array, message) in [
        (npy(">i4", "(2,)", &[]), "numbers of type '>i4', expected little-endian ones such as <f4"),
        (
            npy("<i4", "(1, 2, 3)", &[]),
            "an array of shape [1, 2, 3], expected one or two dimensions",
        ),
        (npy("<i4", "(3, 3)", &[0; 36]), "an array of 3 x 3, expected two rows or two columns"),
        (npy("<f4", "(2, 1)", &[0; 8]), "an array of float32, expected whole numbers"),
        (b"PK".to_vec(), "cannot read an array: failed to fill whole buffer"),
    ] {
        let error = edges_of_bytes(&array, Format::Npy, Options::default()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn compressed_texts_are_read_and_errors_name_the_file() {
    let path = std::env::temp_dir().join(format!("thinwire-read-{}.tsv.gz", std::process::id()));
    let compress = |text: &[u8]| {
        let file = fs::File::create(&path).unwrap();
        let mut out = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap();
        let edges = read::edges(&path, Format::of(&path).unwrap(), Options::default());
        edges.map_err(|error| error.to_string())
    };
    assert_eq!(compress(b"0\t1\n").unwrap().pairs, [(0, 1)]);
    let error = compress(b"0\t1\n0\tx\n").unwrap_err();
    assert!(
        error.ends_with(".tsv.gz: line 2: 'x', expected the destination of an edge"),
        "{error}"
    );
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 6]).unwrap();
    assert!(read::edges(&path, Format::EdgeList, Options::default()).is_err());
    fs::remove_file(&path).unwrap();
    let unknown = Format::of(std::path::Path::new("graph.parquet")).unwrap_err();
    let message = unknown.to_string();
    assert!(message.starts_with("graph.parquet: a name that ends in 'parquet', expected one of"));
    assert!(unknown.hint().unwrap().starts_with("in Python, read_parquet"));
}

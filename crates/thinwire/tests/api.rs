//! The public names and signatures of the crate, so that a change of them is seen.
//!
//! The crate has no code of its own, so the list is read from the sources that it re-exports from:
//! `UPDATE_TESTDATA=1 cargo test -p thinwire --test api` writes `tests/testdata/api.txt` anew.
//!
//! Laws: the list is that of `tests/testdata/api.txt`; every type of a public field or function, and every link in
//! the documentation of a public item, is a public name, too.

mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use source::{Listing, list};

/// Names of the standard library.
const STANDARD: &str = "Arc Box Display Duration Fn FnMut FnOnce Instant Into IpAddr Item Iterator \
    NonZeroUsize Option Path PathBuf Range Result Self Send SocketAddr String Sync \
    Vec BTreeMap HashMap S";

/// Types of functions that the crates above call: users of this one have no values of them.
const INNER: &str = "Address Alternating Buffer Caller Cost Driver Epoch Factor HEADER_BYTES Id \
    KeyValueService Outbox Role Rounds Run Schedule Shape Side Speeds Tensor Times \
    Node";

fn listing() -> Listing {
    list(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates"))
}

#[test]
fn names_and_signatures_are_those_of_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/api.txt");
    let found = listing().lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_TESTDATA").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    let [found, expected] = [&found, &expected].map(|text| text.lines().collect::<BTreeSet<_>>());
    let new: Vec<_> = found.difference(&expected).collect();
    let gone: Vec<_> = expected.difference(&found).collect();
    let update = "UPDATE_TESTDATA=1 updates the list";
    assert!(new.is_empty() && gone.is_empty(), "{update}\nnew {new:#?}\ngone {gone:#?}");
}

#[test]
fn types_of_signatures_and_links_of_documentation_are_public() {
    let Listing { names, types, links, .. } = listing();
    let is_in = |list: &str, name: &String| list.split_whitespace().any(|known| known == name);
    let known = |name: &String| names.contains(name) || is_in(STANDARD, name);
    let inner = |name: &String| is_in(INNER, name);
    let unknown: Vec<_> = types.iter().filter(|(name, _)| !known(name) && !inner(name)).collect();
    assert!(unknown.is_empty(), "types that cannot be named: {unknown:#?}");
    let dangling: Vec<_> = links.iter().filter(|(name, _)| !known(name)).collect();
    assert!(dangling.is_empty(), "links to what is not public: {dangling:#?}");
}

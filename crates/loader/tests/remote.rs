//! Laws of remote rows, over sockets on this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use thinwire_link::Token;
use thinwire_link::endpoint::{Connection, Endpoint};
use thinwire_loader::{Part, Remote, RowService};
use thinwire_rows::{Frozen, Source};

/// Waits that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

fn token() -> Token {
    Token::new("a secret")
}

fn bytes(rows: u64, width: usize) -> Vec<u8> {
    (0..rows * width as u64).map(|at| (at * 37 % 251) as u8).collect()
}

/// Services for the parts of `rows` rows.
struct Parts {
    servers: Vec<Endpoint<RowService>>,
    sources: Vec<Arc<Frozen>>,
    lengths: Vec<u64>,
    whole: Frozen,
}

impl Parts {
    fn start(lengths: &[u64], width: usize) -> Parts {
        let all = bytes(lengths.iter().sum(), width);
        let mut parts = Parts {
            servers: Vec::new(),
            sources: Vec::new(),
            lengths: lengths.to_vec(),
            whole: Frozen::in_memory(all.clone(), width).unwrap(),
        };
        let mut first = 0;
        for rows in lengths {
            let part = all[first as usize * width..][..*rows as usize * width].to_vec();
            let source = Arc::new(Frozen::in_memory(part, width).unwrap());
            let service = RowService::new(source.clone(), first, *rows).unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            parts.servers.push(Endpoint::bind(any, &token(), service).unwrap());
            parts.sources.push(source);
            first += rows;
        }
        parts
    }

    fn address(&self, part: usize) -> String {
        self.servers[part].address().to_string()
    }

    /// Source of a process that has part `here`, if there is one.
    fn connect(&self, here: Option<usize>, copies: bool) -> Remote {
        let place = |part: usize| match here == Some(part) {
            true => Part::Here(self.sources[part].clone(), self.lengths[part]),
            false => {
                let copy = copies.then(|| self.sources[part].clone() as Arc<dyn Source + Send>);
                Part::At(self.address(part), copy)
            }
        };
        let places = (0..self.servers.len()).map(place).collect();
        Remote::connect(places, &token(), PATIENCE).unwrap()
    }
}

fn read(source: &impl Source, rows: &[u64]) -> Result<Vec<u8>, String> {
    let mut out = vec![0; rows.len() * source.width()];
    source.read(rows, &mut out).map(|()| out).map_err(|error| error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn rows_equal_those_of_their_parts(
        lengths in prop::collection::vec(0_u64..40, 1..4),
        width in 1_usize..9,
        here in prop::option::of(0_usize..4),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 0..60)
    ) {
        let parts = Parts::start(&lengths, width);
        let remote = parts.connect(here, false);
        let count: u64 = lengths.iter().sum();
        prop_assert_eq!(remote.rows(), count);
        prop_assume!(count > 0);
        let mut rows: Vec<u64> =
            choices.iter().map(|choice| choice.index(count as usize) as u64).collect();
        prop_assert_eq!(read(&remote, &rows), read(&parts.whole, &rows));
        rows.sort_unstable();
        prop_assert_eq!(read(&remote, &rows), read(&parts.whole, &rows));
        prop_assert_eq!(read(&remote, &[]), Ok(Vec::new()));
        let starts: Vec<u64> = (0..=lengths.len()).map(|part| lengths[..part].iter().sum()).collect();
        for row in 0..count + 1 {
            let part = here.filter(|part| *part < lengths.len());
            let is_own = part.is_some_and(|part| (starts[part]..starts[part + 1]).contains(&row));
            prop_assert_eq!(remote.own(row), parts.whole.in_memory(row).filter(|_| is_own));
        }
    }
}

#[test]
fn reads_of_many_messages_are_whole() {
    // A message has at most 256 KiB of rows, so this takes more messages than may be under way.
    let parts = Parts::start(&[900, 700], 4096);
    let remote = parts.connect(None, false);
    let rows: Vec<u64> = (0..1600).filter(|row| row % 3 > 0).collect();
    assert_eq!(read(&remote, &rows), read(&parts.whole, &rows));
    assert_eq!(remote.fetched(), rows.len() as u64);
}

#[test]
fn a_lost_part_is_named_or_read_from_its_copy() {
    let mut parts = Parts::start(&[5, 6], 3);
    let (without, with) = (parts.connect(Some(0), false), parts.connect(Some(0), true));
    let rows = [1, 4, 5, 10];
    assert_eq!(read(&without, &rows), read(&parts.whole, &rows));
    let address = parts.address(1);
    drop(parts.servers.pop());
    let error = read(&without, &rows).unwrap_err();
    assert!(
        error.starts_with(&format!("rows of part 1 at {address}: ")) && error.lines().count() == 1,
        "{error}"
    );
    assert_eq!(read(&without, &[1, 4]), read(&parts.whole, &[1, 4]));
    for _ in 0..2 {
        assert_eq!(read(&with, &rows), read(&parts.whole, &rows));
    }
}

#[test]
fn what_others_answer_beside_a_failure_is_not_taken_for_the_next_answer() {
    let mut parts = Parts::start(&[5, 6, 7], 3);
    let remote = parts.connect(None, false);
    drop(parts.servers.remove(0));
    read(&remote, &[0, 7, 12]).unwrap_err();
    assert_eq!(read(&remote, &[9, 11, 13]), read(&parts.whole, &[9, 11, 13]));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let (parts, others) = (Parts::start(&[5, 6], 3), Parts::start(&[5, 6], 4));
    let connect = |places: [String; 2]| {
        let places = places.map(|address| Part::At(address, None)).to_vec();
        Remote::connect(places, &token(), PATIENCE).unwrap_err().to_string()
    };
    let error = connect([parts.address(1), parts.address(0)]);
    assert!(error.starts_with("part 0 begins with row 5, expected 0"), "{error}");
    let error = connect([parts.address(0), others.address(1)]);
    assert!(error.starts_with("part 1 has rows of 4 bytes, expected 3"), "{error}");
    let place = vec![Part::At(parts.address(0), None)];
    let error = Remote::connect(place, &Token::new("another"), PATIENCE).unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
}

#[test]
fn a_request_that_is_wrong_ends_its_connection_alone() {
    let parts = Parts::start(&[5], 3);
    let remote = parts.connect(None, false);
    let beyond = [&[1, 8][..], &5_u64.to_le_bytes()].concat();
    for request in [&[7][..], &[0, 0], &[1], &[1, 2, 3], &beyond] {
        let mut connection = Connection::connect(&parts.address(0), &token(), PATIENCE).unwrap();
        connection.send(request).unwrap();
        connection.receive(PATIENCE).unwrap_err();
    }
    assert_eq!(read(&remote, &[0, 4]), read(&parts.whole, &[0, 4]));
}

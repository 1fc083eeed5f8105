//! Laws of the service for rows of a graph's part.

use std::sync::LazyLock;
use std::time::Instant;

use thinwire_link::endpoint::{Action, ClientId, Node, Outbox};
use thinwire_loader::RowService;
use thinwire_rows::Frozen;
use thinwire_wire::{decode, encode};

use crate::draw::Draw;

/// Time at which all requests come; the service does not look at it.
static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Checks that any request is either answered with the rows of the part that it names, answered with a
/// description, or refused with an error of one line.
pub fn parts(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let (width, rows) = (usize::from(draw.u8() % 9) + 1, u64::from(draw.u8() % 9));
    let first = draw.u64() >> 1;
    let all: Vec<u8> = (0..rows as usize * width).map(|at| at as u8).collect();
    let source = Frozen::in_memory(all.clone(), width).expect("rows are whole");
    let mut service = RowService::new(source, first, rows).expect("rows are small");
    let request = draw.rest();
    let mut out = Outbox::new();
    if let Err(error) = service.received(ClientId(1), request, *NOW, &mut out) {
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        return assert!(out.take().is_empty(), "an answer beside an error");
    }
    let actions = out.take();
    let [Action::Send { to: ClientId(1), message }] = &actions[..] else {
        panic!("{actions:?}, expected one answer");
    };
    let Ok((1_u8, numbers)) = decode::<(u8, Vec<u8>)>(request) else {
        return assert_eq!(*message, encode(&(width, first, rows)));
    };
    let (numbers, _) = numbers.as_chunks::<8>();
    let expected = numbers.iter().map(|number| u64::from_le_bytes(*number) as usize);
    let expected: Vec<u8> = expected.flat_map(|row| all[row * width..][..width].to_vec()).collect();
    assert_eq!(*message, expected);
}

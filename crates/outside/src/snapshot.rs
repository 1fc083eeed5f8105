//! Law of the states that ranks of an elastic job hand to those that join.

use thinwire_train::spmd::Snapshot;

/// Byte that ends the header, since no JSON has it.
const END: u8 = 0xff;

/// Checks that any header and tensors are either read as a state with finite shapes, or refused with an
/// error of one line.
pub fn snapshot(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == END).unwrap_or(bytes.len());
    let (header, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    // Random bytes never have the right length.
    let file = [&(header.len() as u64).to_le_bytes()[..], header, body].concat();
    match Snapshot::parse(&file) {
        Ok(state) => {
            let tensors = state.model.values().chain(state.exchange.tensors.values());
            for (shape, values) in tensors {
                assert_eq!(shape.iter().product::<usize>(), values.len());
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

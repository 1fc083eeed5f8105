//! Rows of features on their way into a file.

use thinwire_graph::Features;
use thinwire_rows::Format;

/// Calls `write` with features of `columns` numbers per vertex, encoded in a format. `values` writes the
/// numbers of a vertex.
pub fn with_features<T>(
    (format, columns): (Format, u32),
    values: &dyn Fn(u32, &mut [f32]),
    write: impl FnOnce(Features<'_>) -> T,
) -> T {
    let numbers = std::cell::RefCell::new(vec![0.0; columns as usize]);
    let row = |vertex: u32, row: &mut [u8]| {
        let mut numbers = numbers.borrow_mut();
        values(vertex, &mut numbers);
        format.encode(&numbers, row);
    };
    let name = format.to_string();
    let width = format.width(columns as usize) as u32;
    write(Features { format: &name, columns, width, row: &row })
}

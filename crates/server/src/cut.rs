//! Division of tables into shards.
//!
//! The rows of all tables in sequence are divided into shards of equal size in bytes. A shard is a contiguous
//! range and never changes; only its servers do. Law: every row is in exactly one shard, and the sizes of
//! shards differ by at most one row of the widest table.

use std::ops::Range;

/// Size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of a row including optimiser state and version.
    pub row_bytes: u64,
}

/// Rows of a table that are in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the table.
    pub table: u32,
    /// The rows.
    pub rows: Range<u64>,
}

/// Returns the pieces of each of `shards` shards, in the order of the tables.
///
/// # Panics
/// If the bytes of all tables overflow 64 bits, or a table has rows of zero bytes.
pub fn cut(tables: &[Extent], shards: usize) -> Vec<Vec<Piece>> {
    let size = |table: &Extent| table.rows.checked_mul(table.row_bytes).expect("bytes in 64 bits");
    let total = tables
        .iter()
        .map(size)
        .fold(0, |sum: u64, bytes| sum.checked_add(bytes).expect("bytes in 64 bits"));
    let bound = |shard: usize| (u128::from(total) * shard as u128 / shards as u128) as u64;
    let mut pieces = vec![Vec::new(); shards];
    let mut start = 0;
    for (table, extent) in (0..).zip(tables) {
        // A row belongs to the shard that contains its first byte.
        let first = |at: u64| at.saturating_sub(start).div_ceil(extent.row_bytes).min(extent.rows);
        for (shard, pieces) in pieces.iter_mut().enumerate() {
            let rows = first(bound(shard))..first(bound(shard + 1));
            if !rows.is_empty() {
                pieces.push(Piece { table, rows });
            }
        }
        start += size(extent);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_tables_go_to_three_shards() {
        let tables = [Extent { rows: 4, row_bytes: 8 }, Extent { rows: 16, row_bytes: 4 }];
        let piece = |table, rows| Piece { table, rows };
        let expected = [vec![piece(0, 0..4)], vec![piece(1, 0..8)], vec![piece(1, 8..16)]];
        assert_eq!(cut(&tables, 3), expected);
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_shard_and_shards_are_even(
            tables in prop::collection::vec((0_u64..300, 1_u64..90), 1..6), shards in 1_usize..20
        ) {
            let tables: Vec<Extent> =
                tables.into_iter().map(|(rows, row_bytes)| Extent { rows, row_bytes }).collect();
            let pieces = cut(&tables, shards);
            for (table, extent) in (0..).zip(&tables) {
                let mine = pieces.iter().flatten().filter(|piece| piece.table == table);
                let rows: Vec<u64> = mine.flat_map(|piece| piece.rows.clone()).collect();
                prop_assert_eq!(rows, (0..extent.rows).collect::<Vec<_>>());
            }
            let bytes = |pieces: &Vec<Piece>| {
                let of = |p: &Piece| (p.rows.end - p.rows.start) * tables[p.table as usize].row_bytes;
                pieces.iter().map(of).sum::<u64>()
            };
            let total: u64 = pieces.iter().map(bytes).sum();
            let widest = tables.iter().map(|table| table.row_bytes).max().unwrap();
            for shard in &pieces {
                let even = total as f64 / shards as f64;
                prop_assert!((bytes(shard) as f64 - even).abs() <= widest as f64 + 1.0);
            }
        }
    }
}

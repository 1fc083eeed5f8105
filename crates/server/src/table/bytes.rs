//! Tables as bytes: how a copy of a shard travels, and how rows are answered.
//!
//! Per table: its number (4), the number of rows that were written (4), and in the order in which they were
//! first written their places in the shard (4 each), versions (4 each), values and state (4 per value).
//! Law: `read(write(x)) == x`, and any bytes are the tables of the shard or none.

use thinwire_member::Fields;

use super::{Table, TableOptions, Tables};
use crate::cut::Piece;
use crate::wire::fields::{count, floats, write_count, write_floats};
use crate::write::Pull;

/// Bytes of a table's number and of its number of rows.
const HEAD_BYTES: usize = 8;

impl Tables {
    /// Appends the tables.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let length: usize = self.tables.iter().map(Table::written_bytes).sum();
        bytes.reserve_exact(length);
        self.tables.iter().for_each(|table| table.write(bytes));
    }

    /// Reads what [`Tables::write`] has written of tables with these pieces and options.
    pub(crate) fn read_from(
        bytes: &[u8],
        pieces: &[Piece],
        options: &[TableOptions],
    ) -> Option<Tables> {
        let mut fields = Fields::new(bytes);
        let table = |piece: &Piece| {
            let table = Table::new(piece.table, options[piece.table as usize], piece.rows.clone());
            table.filled(&mut fields)
        };
        let tables = pieces.iter().map(table).collect::<Option<Vec<_>>>()?;
        fields.end().ok().map(|()| Tables { tables })
    }

    /// Returns the most bytes of tables with these pieces and options.
    pub(crate) fn bytes_max(pieces: &[Piece], options: &[TableOptions]) -> usize {
        let bytes = |piece: &Piece| {
            let options = options[piece.table as usize];
            let row = 8 + 4 * options.width * (1 + options.optimizer.rule.slots());
            HEAD_BYTES + (piece.rows.end - piece.rows.start) as usize * row
        };
        pieces.iter().map(bytes).sum()
    }

    /// Appends the values of a pull's rows, which was checked.
    pub(crate) fn answer(&self, pull: &Pull, bytes: &mut Vec<u8>) {
        for (table, rows) in &pull.rows {
            let table = self.table(*table).expect("it was checked");
            rows.iter().for_each(|row| table.answer(*row, bytes));
        }
    }

    /// Returns the number of values of a pull's rows, which was checked.
    pub(crate) fn values(&self, pull: &Pull) -> usize {
        let width = |table: u32| self.table(table).map_or(0, |table| table.options.width);
        pull.rows.iter().map(|(table, rows)| rows.len() * width(*table)).sum()
    }
}

impl Table {
    /// Returns the number of bytes of memory that the rows take.
    pub fn bytes(&self) -> u64 {
        let numbers = self.places.len() + self.values.len() + self.state.len();
        4 * (numbers + self.versions.len()) as u64
    }

    fn written_bytes(&self) -> usize {
        HEAD_BYTES + 4 * (2 * self.versions.len() + self.values.len() + self.state.len())
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.number.to_le_bytes());
        write_count(self.written(), bytes);
        let mut order = vec![0_u32; self.written()];
        for (row, place) in (0..).zip(&self.places) {
            if let Some(place) = place.checked_sub(1) {
                order[place as usize] = row;
            }
        }
        bytes.extend_from_slice(bytemuck::must_cast_slice(&order));
        bytes.extend_from_slice(bytemuck::must_cast_slice(&self.versions));
        write_floats(&self.values, bytes);
        write_floats(&self.state, bytes);
    }

    /// Returns the table, none of whose rows was written, with the rows that follow.
    fn filled(mut self, fields: &mut Fields<'_>) -> Option<Table> {
        (fields.u32().ok()? == self.number).then_some(())?;
        let slots = self.options.optimizer.rule.slots();
        let values = self.options.width * (1 + slots);
        let written = count(fields, 8 + 4 * values)?;
        let order: Vec<u32> = bytemuck::pod_collect_to_vec(fields.bytes(4 * written).ok()?);
        for (place, row) in (1..).zip(order) {
            let known = self.places.get_mut(row as usize).filter(|known| **known == 0)?;
            *known = place;
        }
        self.versions = bytemuck::pod_collect_to_vec(fields.bytes(4 * written).ok()?);
        self.values = floats(fields, written * self.options.width)?;
        self.state = floats(fields, written * self.options.width * slots)?;
        Some(self)
    }

    fn answer(&self, row: u64, bytes: &mut Vec<u8>) {
        let width = self.options.width;
        match self.place(row) {
            Some(place) => write_floats(&self.values[place * width..][..width], bytes),
            None => {
                let mut values = Vec::with_capacity(width);
                self.begin(row, &mut values);
                write_floats(&values, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thinwire_member::Id;
    use thinwire_update::Optimizer;

    use super::*;
    use crate::table::Initial;
    use crate::write::{Part, Write};

    fn pieces() -> [Piece; 2] {
        [Piece { table: 0, rows: 10..19 }, Piece { table: 2, rows: 0..3 }]
    }

    fn options() -> [TableOptions; 3] {
        let options = |optimizer, width| TableOptions {
            width,
            optimizer: Optimizer::parse(optimizer).unwrap(),
            initial: Initial::Normal(0.1),
            seed: 5,
            stream: 0,
        };
        [options("lazyadam:lr=1", 2), options("sgd:lr=1", 1), options("sgd:lr=0.5", 3)]
    }

    fn tables(touched: &[u64]) -> Tables {
        let mut tables = Tables::new(&pieces(), &options());
        for row in touched {
            let part =
                |table, row, width| Part { table, rows: vec![row], gradient: vec![0.5; width] };
            let parts = vec![part(0, 10 + row, 2), part(2, row % 3, 3)];
            tables.apply(&Write::Update { pushes: Vec::new(), parts });
        }
        tables
    }

    fn written(tables: &Tables) -> Vec<u8> {
        let mut bytes = Vec::new();
        tables.write(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn tables_are_read_back(touched in prop::collection::vec(0_u64..9, 0..20)) {
            let (mut one, bytes) = (tables(&touched), written(&tables(&touched)));
            prop_assert!(bytes.len() <= Tables::bytes_max(&pieces(), &options()));
            let mut other = Tables::read_from(&bytes, &pieces(), &options()).unwrap();
            prop_assert_eq!(&one, &other);
            // The optimiser goes on from its state.
            let part = Part { table: 0, rows: vec![12], gradient: vec![1.0; 2] };
            let write = Write::Update { pushes: Vec::new(), parts: vec![part] };
            one.apply(&write);
            other.apply(&write);
            prop_assert_eq!(&one, &other);
            let rows = vec![(0, vec![10, 12]), (2, vec![1])];
            let pull = Pull { client: Id(1), request: 1, after: 0, rows };
            let mut answer = Vec::new();
            one.answer(&pull, &mut answer);
            prop_assert_eq!(answer, bytemuck::must_cast_slice::<f32, u8>(&one.read(&pull)).to_vec());
            prop_assert_eq!(one.values(&pull), 7);
        }

        #[test]
        fn any_bytes_are_refused_or_write_themselves_back(
            touched in prop::collection::vec(0_u64..9, 0..4), at: usize, byte in 0..12_u8, cut: bool
        ) {
            let mut bytes = written(&tables(&touched));
            let at = at % bytes.len();
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            if let Some(tables) = Tables::read_from(&bytes, &pieces(), &options()) {
                prop_assert_eq!(written(&tables), bytes);
            }
        }
    }
}

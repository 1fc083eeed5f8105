//! Pulls of a session through the caches of its tables.

use std::sync::Arc;

use crate::client::caches::Batch;
use crate::client::session::Session;
use crate::client::split::Plan;
use crate::error::Error;

/// Pull under way. If it is dropped, its answers are discarded.
#[derive(Debug)]
#[must_use = "a pull is finished by Client::finish_pull"]
pub struct Pulling {
    ticket: u64,
    plan: Plan,
    groups: Vec<Group>,
    /// Number of values in all groups.
    values: usize,
    _alive: Arc<()>,
}

/// Rows of one table in a pull.
#[derive(Debug)]
struct Group {
    table: u32,
    rows: usize,
    /// Lookup in the table's cache, which requests only the missing rows.
    batch: Option<Batch>,
}

impl Group {
    fn asked(&self) -> usize {
        self.batch.as_ref().map_or(self.rows, |batch| batch.missing().len())
    }
}

impl Session {
    /// Requests rows whose values must contain the client's first `after` pushes.
    pub fn begin_pull(&mut self, ids: &[(u32, &[u64])], after: u64) -> Result<Pulling, Error> {
        let mut values = 0;
        for (table, rows) in ids {
            values += rows.len() * self.partition_map.size(*table)?.1;
        }
        let look_up = |(table, rows): &(u32, &[u64])| {
            let batch = self.caches.begin(*table, rows, after);
            Group { table: *table, rows: rows.len(), batch }
        };
        let groups: Vec<Group> = ids.iter().map(look_up).collect();
        let mut asked = Vec::new();
        for (group, (table, rows)) in groups.iter().zip(ids) {
            asked.push((*table, group.batch.as_ref().map_or(*rows, Batch::missing)));
        }
        let mut plan = self.partition_map.plan(&asked)?;
        let ticket = self.add_pull(&mut plan, after);
        if let Err(error) = self.send() {
            self.forget(ticket);
            return Err(error);
        }
        let alive = Arc::new(());
        self.keep(ticket, &alive);
        Ok(Pulling { ticket, plan, groups, values, _alive: alive })
    }

    /// Waits for the rows of a pull; `pushes` is the number of pushes that the client has begun by now.
    pub fn finish_pulling(
        &mut self,
        pulling: Pulling,
        pushes: u64,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let (found, expected) = (out.len(), pulling.values);
        if found != expected {
            self.forget(pulling.ticket);
            let message = format!("buffer of {found} values for a pull, expected {expected}");
            return Err(Error::invalid(message));
        }
        if self.is_plain(&pulling) {
            let out = bytemuck::must_cast_slice_mut(out);
            return self.finish_pull(pulling.ticket, &pulling.plan, out);
        }
        let mut fetched = std::mem::take(&mut self.fetched);
        fetched.resize(pulling.plan.length, 0);
        let finished = self.finish_pull(pulling.ticket, &pulling.plan, &mut fetched);
        if finished.is_ok() {
            self.spread(pulling.groups, pushes, &fetched, out);
        }
        self.fetched = fetched;
        finished
    }

    /// Returns whether answers are copied directly to the output, without decoding.
    fn is_plain(&self, pulling: &Pulling) -> bool {
        let is_plain =
            |group: &Group| group.batch.is_none() && self.partition_map.is_exact(group.table);
        pulling.groups.iter().all(is_plain)
    }

    /// Decodes fetched and cached rows into the output.
    fn spread(&mut self, groups: Vec<Group>, pushes: u64, mut fetched: &[u8], mut out: &mut [f32]) {
        for group in groups {
            let (format, width) = self.partition_map.format(group.table);
            let (mine, rest) = fetched.split_at(group.asked() * format.width(width));
            let (values, after) = out.split_at_mut(group.rows * width);
            (fetched, out) = (rest, after);
            match group.batch {
                None => format.decode(mine, width, values),
                Some(batch) => self.caches.finish(batch, mine, pushes, |all| {
                    format.decode(all, width, values);
                }),
            }
        }
    }

    /// Requests rows and waits for them.
    pub fn pull(
        &mut self,
        groups: &[(u32, &[u64])],
        after: u64,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let pulling = self.begin_pull(groups, after)?;
        self.finish_pulling(pulling, after, out)
    }

    /// Reads all rows of a table.
    pub fn pull_all(&mut self, table: u32, after: u64) -> Result<Vec<f32>, Error> {
        let (rows, width) = self.partition_map.size(table)?;
        let rows: Vec<u64> = (0..rows).collect();
        let mut out = vec![0.0; rows.len() * width];
        self.pull(&[(table, &rows)], after, &mut out)?;
        Ok(out)
    }
}

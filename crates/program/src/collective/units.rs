//! Sums of a group that is made of units of neighbours, such as the ranks of a host: within a unit
//! they are not encoded, between units they are.

use std::sync::Arc;

use thinwire_codec::Codec;
use thinwire_schedule as schedule;
use thinwire_wire::{Rank, World};

use super::transfer::Cut;
use super::{Phase, Rearrange, Transfer};

/// Values of a rank whose group is made of units of neighbours: sums within a unit are not encoded.
pub(super) struct Units<'a> {
    pub cut: &'a Cut<'a>,
    /// This rank among its unit.
    pub inner: World,
    /// This rank's unit among all units.
    pub outer: World,
}

impl Units<'_> {
    /// The numbers of this rank's unit within the group.
    fn unit(&self) -> Vec<Rank> {
        let first = self.outer.rank().index() * self.inner.size();
        (0..self.inner.size()).map(|at| Rank((first + at) as u32)).collect()
    }

    /// The numbers of those with this rank's place in the other units.
    fn across(&self) -> Vec<Rank> {
        let (inner, at) = (self.inner.size(), self.inner.rank().index());
        (0..self.outer.size()).map(|unit| Rank((unit * inner + at) as u32)).collect()
    }

    /// Returns the all-reduce: a part each within the unit, all-reduced across units, and gathered
    /// within.
    pub fn all_reduce(&self, codec: &Arc<dyn Codec>) -> Transfer {
        let (n, unit) = (self.cut.elements(), self.unit());
        let raw = thinwire_codec::raw();
        let scatter = Phase::reduce_scatter(self.inner, n, &raw).among(&unit);
        let mine = scatter.own.clone().unwrap_or_default();
        let mut reduce = Phase::all_reduce(self.outer, mine.len(), codec).among(&self.across());
        reduce.after.push(Rearrange::Place { start: mine.start, length: n, rest: 0.0 });
        let gather = schedule::all_gather(self.inner, &self.cut.flat(n));
        let gather = Phase::raw(gather, n, []).among(&unit);
        Transfer { before: Vec::new(), phases: vec![scatter, reduce, gather] }
    }

    /// Returns the reduce-scatter: first, within the unit, of the parts that go to the same place in
    /// all units; then across units.
    pub fn reduce_scatter(&self, dim: usize, codec: &Arc<dyn Codec>) -> Transfer {
        let (n, inner) = (self.cut.elements(), self.inner.size());
        let raw = thinwire_codec::raw();
        let by_place = Rearrange::Split { outer: self.outer.size(), parts: inner };
        let scatter = Phase::reduce_scatter(self.inner, n, &raw).among(&self.unit());
        let reduce = Phase::reduce_scatter(self.outer, n / inner, codec).among(&self.across());
        Transfer { before: vec![self.cut.split(dim), by_place], phases: vec![scatter, reduce] }
    }
}

//! Memory of a server's copies, and the end of a server that cannot keep them.

use thinwire_link::service::Outbox;

use super::{Keeper, ServerService};
use crate::table::{MemoryLimit, Tables};
use crate::view::{Part, View};

impl ServerService {
    /// Divides the memory evenly between the copies that this server has in these views.
    pub(super) fn share_memory(&mut self, views: &[View], out: &mut Outbox) {
        let (Some(limit), Some(layout)) = (self.limits.memory.clone(), &self.layout) else {
            return;
        };
        let own = |view: &View| view.part(self.id) != Part::None;
        let shards = views.iter().zip(&layout.shards).filter(|(view, _)| own(view));
        let least = shards.map(|(_, pieces)| Tables::least_bytes(pieces, &layout.tables));
        let (copies, least) = least.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let has_none = self.keepers.iter().all(|keeper| keeper.tables().is_none());
        // A server that takes over copies of others goes on with a little more.
        if has_none && least > limit.bytes_max {
            let most = limit.bytes_max;
            let reason = format!("memory of {most} bytes for {copies} shards, which need {least}");
            return self.fail(reason, out);
        }
        let share = MemoryLimit { bytes_max: limit.bytes_max / copies.max(1), ..limit };
        self.keepers.iter_mut().for_each(|keeper| keeper.limit(share.clone()));
        (0..self.keepers.len()).for_each(|shard| self.heed(shard, out));
    }

    /// Takes note if the copy of a shard is lost.
    pub(super) fn heed(&mut self, shard: usize, out: &mut Outbox) {
        if let Some(error) = self.keepers.get(shard).and_then(Keeper::failure) {
            self.fail(error.to_string(), out);
        }
    }

    /// Serves nobody any more, since this server cannot keep its rows: the others see one that has died.
    fn fail(&mut self, reason: String, out: &mut Outbox) {
        if !self.has_failed {
            self.has_failed = true;
            self.reports.fail(reason);
            self.visitors.connections().for_each(|connection| out.close(connection));
        }
    }
}

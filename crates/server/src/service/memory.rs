//! Memory limit of a server's copies, and failure of a server that loses its rows.

use thinwire_link::endpoint::Outbox;

use super::{ServerService, ShardReplica};
use crate::table::{MemoryLimit, Tables};
use crate::view::{Part, View};

impl ServerService {
    /// Divides the memory limit evenly between the copies that this server has in these views.
    pub(super) fn share_memory(&mut self, views: &[View], out: &mut Outbox) {
        let (Some(limit), Some(layout)) = (self.limits.memory.clone(), &self.layout) else {
            return;
        };
        let own = |view: &View| view.part(self.id) != Part::None;
        let shards = views.iter().zip(&layout.shards).filter(|(view, _)| own(view));
        let least = shards.map(|(_, pieces)| Tables::least_bytes(pieces, &layout.tables));
        let (copies, least) = least.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let has_none = self.replicas.iter().all(|replica| replica.tables().is_none());
        // A server that takes over copies from others may exceed the limit a little, rather than fail.
        if has_none && least > limit.bytes_max {
            let most = limit.bytes_max;
            let reason =
                format!("{copies} shards need {least} bytes of memory, expected at most {most}");
            return self.fail(reason, out);
        }
        let share = MemoryLimit { bytes_max: limit.bytes_max / copies.max(1), ..limit };
        self.replicas.iter_mut().for_each(|replica| replica.limit(share.clone()));
        (0..self.replicas.len()).for_each(|shard| self.heed(shard, out));
    }

    /// Checks whether the copy of a shard is lost, which fails the server.
    pub(super) fn heed(&mut self, shard: usize, out: &mut Outbox) {
        if let Some(error) = self.replicas.get(shard).and_then(ShardReplica::failure) {
            self.fail(error.to_string(), out);
        }
    }

    /// Stops serving because rows are lost. From then on, the server looks dead to other processes.
    fn fail(&mut self, reason: String, out: &mut Outbox) {
        if !self.has_failed {
            self.has_failed = true;
            self.reports.fail(reason);
            self.sessions.connections().for_each(|connection| out.close(connection));
        }
    }
}

//! Links that differ between the members of a level.
//!
//! Members that exchange directly send to the others one after the other.

/// Latencies and rates between members of a level, by sender, then by receiver. The diagonal is ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Latency in seconds.
    pub latency_s: Vec<Vec<f64>>,
    /// Bandwidth in bytes per second.
    pub bytes_per_s: Vec<Vec<f64>>,
}

/// Latency and bandwidth of a link, or of several links that are used together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    /// Latency in seconds.
    pub latency_s: f64,
    /// Bandwidth in bytes per second.
    pub bytes_per_s: f64,
}

impl Lane {
    /// Link without limits.
    pub const FREE: Lane = Lane { latency_s: 0.0, bytes_per_s: f64::INFINITY };

    /// Returns the larger latency and the smaller bandwidth of the two lanes.
    pub fn and(self, other: Lane) -> Lane {
        Lane {
            latency_s: self.latency_s.max(other.latency_s),
            bytes_per_s: self.bytes_per_s.min(other.bytes_per_s),
        }
    }
}

impl Links {
    /// Returns the largest latency, and the smallest of the members' mean bandwidths, if each of
    /// `members` sends the same amount to every other member.
    pub fn direct(&self, members: &[usize]) -> Lane {
        let of = |from: &usize| {
            let others = || members.iter().filter(|to| *to != from);
            let seconds: f64 = others().map(|to| 1.0 / self.bytes_per_s[*from][*to]).sum();
            let latencies = others().map(|to| self.latency_s[*from][*to]);
            let bytes_per_s = others().count() as f64 / seconds;
            Lane { latency_s: latencies.fold(0.0, f64::max), bytes_per_s }
        };
        members.iter().map(of).fold(Lane::FREE, Lane::and)
    }

    /// Returns the slower direction between two members.
    pub fn between(&self, one: usize, other: usize) -> Lane {
        self.one(one, other).and(self.one(other, one))
    }

    /// Returns the largest latency and the smallest bandwidth of all links.
    pub fn worst(&self) -> Lane {
        let members = self.members();
        let pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        pairs.map(|(from, to)| self.one(from, to)).fold(Lane::FREE, Lane::and)
    }

    /// Returns all links with `times` the bandwidth.
    pub fn scaled(mut self, times: f64) -> Links {
        self.bytes_per_s.iter_mut().flatten().for_each(|rate| *rate *= times);
        self
    }

    /// Returns the links between some of the members.
    pub fn of(&self, members: &[usize]) -> Links {
        let row = |row: &Vec<f64>| members.iter().map(|to| row[*to]).collect();
        let part =
            |matrix: &Vec<Vec<f64>>| members.iter().map(|from| row(&matrix[*from])).collect();
        Links { latency_s: part(&self.latency_s), bytes_per_s: part(&self.bytes_per_s) }
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.latency_s.len()
    }

    /// Returns the link from one member to another.
    pub fn one(&self, from: usize, to: usize) -> Lane {
        Lane { latency_s: self.latency_s[from][to], bytes_per_s: self.bytes_per_s[from][to] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the links of three members; the link from the first to the second is slow.
    fn links() -> Links {
        let bytes_per_s = vec![vec![9.0, 1.0, 4.0], vec![4.0, 9.0, 4.0], vec![2.0, 4.0, 9.0]];
        let latency_s = vec![vec![0.0, 5.0, 1.0], vec![1.0, 0.0, 1.0], vec![1.0, 1.0, 0.0]];
        Links { latency_s, bytes_per_s }
    }

    #[test]
    fn the_slowest_sender_or_link_counts() {
        let links = links();
        assert_eq!(links.direct(&[0, 1, 2]), Lane { latency_s: 5.0, bytes_per_s: 2.0 / 1.25 });
        assert_eq!(links.direct(&[1, 2]), Lane { latency_s: 1.0, bytes_per_s: 4.0 });
        assert_eq!(links.between(2, 0), Lane { latency_s: 1.0, bytes_per_s: 2.0 });
        assert_eq!(links.worst(), Lane { latency_s: 5.0, bytes_per_s: 1.0 });
    }

    #[test]
    fn the_first_members_keep_their_links() {
        let first = links().of(&[0, 1]);
        assert_eq!(first.members(), 2);
        assert_eq!(first.one(0, 1), links().one(0, 1));
    }
}

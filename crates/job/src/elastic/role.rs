//! Roles of processes: an elastic job may have servers in addition to its workers, with their own epochs.

use thinwire_member::Id;

/// Role of a process in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The process trains.
    Worker,
    /// The process keeps parameters for workers.
    Server,
}

impl Role {
    /// Returns the role of the process with this id.
    pub fn of(id: Id) -> Role {
        if id.is_server() { Role::Server } else { Role::Worker }
    }

    /// Returns an id of this role, with the other bits of `number`.
    pub(super) fn id(self, number: u64) -> Id {
        Id(match self {
            Role::Worker => number & !Id::SERVER_BIT,
            Role::Server => number | Id::SERVER_BIT,
        })
    }

    /// Returns the noun for a process of this role in an epoch.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Role::Worker => "rank",
            Role::Server => "server",
        }
    }

    /// Returns the part of the store where the members of an epoch meet.
    pub(super) fn prefix(self, number: u32) -> String {
        match self {
            Role::Worker => format!("meeting/{number}"),
            Role::Server => format!("servers/meeting/{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_role_has_that_role_and_the_other_bits() {
        for number in [1, u64::MAX, 0x0123_4567_89ab_cdef] {
            for role in [Role::Worker, Role::Server] {
                let id = role.id(number);
                assert_eq!((Role::of(id), id.0 << 1), (role, number << 1));
            }
        }
    }

    #[test]
    fn epochs_of_both_roles_meet_in_parts_of_their_own() {
        assert_eq!(Role::Worker.prefix(3), "meeting/3");
        assert!(!Role::Server.prefix(3).starts_with("meeting"));
    }
}

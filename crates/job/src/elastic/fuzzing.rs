//! The coordinator without its sockets, for fuzz targets.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use thinwire_link::service::Service;
use thinwire_link::store::KeyValueService;
use thinwire_member::{Id, Options, Roster};

use super::coordinator_state::CoordinatorState;
use super::envelope::Reply;
use super::persistence::Persistence;
use super::role_registry::RoleRegistry;
use super::service::CoordinatorService;

/// Returns the coordinator of a new job, which began at `base`.
pub fn coordinator(options: Options, base: Instant) -> impl Service {
    let coordinator_state = CoordinatorState::Decided(Box::new(Roster::found(Id(7), options)));
    let tell = Box::new(|event: &super::Event| assert!(!event.text.contains('\n'), "{event:?}"));
    let target = Arc::new(AtomicU32::new(0));
    CoordinatorService::new(
        RoleRegistry::of_workers(coordinator_state),
        Persistence::default(),
        target,
        tell,
        base,
    )
}

/// Checks that the answer to a message writes itself back.
///
/// # Panics
/// If it does not.
pub fn check_reply(message: &[u8], reply: &[u8]) {
    if !KeyValueService::is_request(message) {
        assert_eq!(Reply::parse(reply).expect("a reply").to_bytes(), reply);
    }
}
